"""The command around foresight: `paceline draft-head train`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from paceline.cli.loading import use_threads
from paceline.cli.options import flattened, only
from paceline.cli.show import print_note
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.util.files import require_writable
from paceline.util.options import ModelOptions

draft_head = App(
    name="draft-head",
    help="Foresight for the drafter auto: train what a model's hidden state tells of the tokens to"
    " come.",
)

Target = Annotated[str, Parameter(name="TARGET", help="directory, hub id or word of the target.")]
Recordings = Annotated[
    list[Path],
    Parameter(
        name=("--recording", "--recordings"), help="files of `paceline record`; repeat it for more."
    ),
]
flattened("Training")(DraftHeadTraining)


@draft_head.command
def train(
    target: Target,
    /,
    *,
    recordings: Recordings,
    out: Path,
    texts: Annotated[list[str] | None, Parameter(name=("--text", "--texts"))] = None,
    config: DraftHeadTraining = DraftHeadTraining(),
    models: Annotated[ModelOptions, only("dtype", "device", "threads")] = ModelOptions(),
) -> None:
    """Train foresight on recorded answers of the target, and on texts. Interrupt it after any
    epoch: the best one so far stays.

    Args:
        out: file of the foresight (safetensors), for the option `draft_head` of the drafter auto.
        texts: files of texts or chats to learn from besides (.jsonl, .txt, .npy, .parquet), as for
            `paceline datastore`.
    """
    require_writable(out)
    use_threads(models.threads)
    from paceline.draft_head.trained import save
    from paceline.training.draft_head.prepare import prepare
    from paceline.training.draft_head.train import DraftHeadReport, DraftHeadTrainer

    material = prepare(
        target, recordings, texts or [], config, models.dtype, models.device, progress=True
    )
    trainer = DraftHeadTrainer(material.model, material.learnt, material.held_out, config)
    best: list[DraftHeadReport] = []

    def judged(epoch: int, found: DraftHeadReport) -> None:
        print_note(f"{'least squares' if epoch == 0 else f'epoch {epoch}'}: {found}")
        if epoch and (not best or found.first[0] > best[0].first[0]):
            best[:] = [found]
            save(
                out,
                trainer.weights(),
                replace(material.card, judged={"epoch": epoch, **asdict(found)}),
            )

    try:
        trainer.run(judged, progress=True)
    except KeyboardInterrupt:
        print_note(
            "interrupted;"
            f" {f'{out} holds the best: {best[0]}' if best else 'nothing has been written'}"
        )
        raise
    print_note(f"wrote {out}: {best[0]}")
