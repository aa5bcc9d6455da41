"""Implement the command that trains a hidden-state draft head."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from paceline.cli.loading import use_threads
from paceline.cli.options import TargetModel, flattened, only
from paceline.cli.show import print_note
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.util.files import require_writable
from paceline.util.options import ModelOptions

draft_head = App(name="draft-head", help="Train a hidden-state draft head for the drafter auto.")

Recordings = Annotated[
    list[Path],
    Parameter(name=("--recording", "--recordings"), help="Files of `paceline record`; repeatable."),
]
flattened("Training")(DraftHeadTraining)


@draft_head.command
def train(
    model: TargetModel,
    /,
    *,
    recordings: Recordings,
    out: Path,
    texts: Annotated[list[str] | None, Parameter(name=("--text", "--texts"))] = None,
    config: DraftHeadTraining = DraftHeadTraining(),
    models: Annotated[ModelOptions, only("dtype", "device", "threads")] = ModelOptions(),
) -> None:
    """Train a hidden-state draft head on the target's recorded answers and on texts.

    If training is interrupted, the file holds the best epoch so far.

    Args:
        out: File of the draft head (safetensors), for the option `draft_head` of the drafter auto.
        texts: More text or chat files to train on (.jsonl, .txt, .npy, .parquet), as for `paceline
            datastore`.
    """
    require_writable(out)
    use_threads(models.threads)
    from paceline.draft_head.trained import save
    from paceline.training.draft_head.prepare import prepare
    from paceline.training.draft_head.train import DraftHeadReport, DraftHeadTrainer

    material = prepare(
        model, recordings, texts or [], config, models.dtype, models.device, progress=True
    )
    trainer = DraftHeadTrainer(material.model, material.learnt, material.held_out, config)
    best: list[DraftHeadReport] = []

    def judged(epoch: int, judgement: DraftHeadReport) -> None:
        print_note(f"{'least squares' if epoch == 0 else f'epoch {epoch}'}: {judgement}")
        if epoch and (not best or judgement.first[0] > best[0].first[0]):
            best[:] = [judgement]
            save(
                out,
                trainer.weights(),
                replace(material.card, judged={"epoch": epoch, **asdict(judgement)}),
            )

    try:
        trainer.run(judged, progress=True)
    except KeyboardInterrupt:
        state = f"{out} holds the best epoch: {best[0]}" if best else "nothing was written yet"
        print_note(f"interrupted; {state}")
        raise
    print_note(f"wrote {out}: {best[0]}")
