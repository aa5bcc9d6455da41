"""The commands around a draft model: `paceline draft train | evaluate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from paceline import demo
from paceline.cli.files import ResultFiles
from paceline.cli.loading import use_threads
from paceline.cli.options import flattened, only, without
from paceline.cli.show import print_note, table_console
from paceline.training.draft.settings import DraftTraining
from paceline.util.config import require_range
from paceline.util.options import ModelOptions

draft = App(
    name="draft",
    help="Draft models: train a small one for any target from the target's own answers, judge it.",
)

Target = Annotated[str, Parameter(name="TARGET", help="directory, hub id or word of the target.")]
Recordings = Annotated[
    list[Path],
    Parameter(
        name=("--recording", "--recordings"), help="files of `paceline record`; repeat it for more."
    ),
]
flattened("Training")(DraftTraining)


@draft.command
def train(
    target: Target,
    /,
    *,
    recordings: Recordings,
    out: Path,
    texts: Annotated[list[str] | None, Parameter(name=("--text", "--texts"))] = None,
    config: DraftTraining = DraftTraining(),
    models: Annotated[ModelOptions, only("threads")] = ModelOptions(),
) -> None:
    """Train a draft on recorded answers of the target, and on texts. Interrupt it at any time; the
    same command goes on.

    Args:
        out: folder of the draft: always the best so far, and at the end its learning curve.
        texts: files of texts or chats to learn the language from (.jsonl, .txt, .npy, .parquet), as
            for `paceline datastore`.
    """
    use_threads(models.threads)
    from paceline.model.cached_lm import CachedLM
    from paceline.training.draft.plot import draw_curve
    from paceline.training.draft.prepare import prepare
    from paceline.training.draft.start import shaped_as_start
    from paceline.training.draft.train import DraftTrainer

    config = shaped_as_start(config)
    loaded, material, folder = prepare(target, recordings, texts or [], out, config)
    if folder.finished:
        print_note(
            f"{out} is finished: {folder.record().best.per_chain:.3f} of {config.length} accepted"
            " a chain"
        )
        return
    if config.uses_target_states:
        material = material.read(CachedLM(loaded), config.reads_at, progress=True)
    trainer = DraftTrainer(loaded, material, config, folder)
    del loaded
    try:
        trainer.run(print_note)
    except KeyboardInterrupt:
        print_note(f"interrupted; {out} keeps the last checkpoint, and the same command goes on")
        raise
    made = folder.finish()
    draw_curve(made, out / "curve.png")
    print_note(
        f"wrote {out}: {made.best.per_chain:.3f} of {config.length} accepted a chain,"
        f" {made.best.agreement:.1%} of tokens agree,"
        f" {made.kept} tokens in its vocabulary"
    )


@draft.command
def evaluate(
    target: Target,
    draft_folder: Annotated[
        str, Parameter(name="DRAFT", help="directory, hub id or word of the draft.")
    ],
    /,
    *,
    recordings: Recordings,
    length: int = 4,
    models: Annotated[ModelOptions, only("dtype", "threads")] = ModelOptions(),
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> None:
    """Judge a draft on answers it has not learnt from: acceptance by place, cost of a forward, and
    what drafting would gain.

    Args:
        length: K, tokens of a chain.
    """
    require_range("draft evaluate", "length", length, 1)
    use_threads(models.threads)
    from paceline.model.cached_lm import CachedLM
    from paceline.model.identity import model_identity
    from paceline.model.loading import draft_lm, load_model
    from paceline.report.documents import write_document
    from paceline.training.draft.evaluate import JUDGEMENT_KIND, evaluate, print_draft_judgement
    from paceline.training.draft.plot import draw_judgement
    from paceline.training.draft.stretches import recorded

    loaded = load_model(demo.target_of(target), models.dtype)
    answers = recorded(recordings, model_identity(loaded)[0])
    found = evaluate(draft_lm(draft_folder), CachedLM(loaded), answers, length)
    print_draft_judgement(found, files.console() or table_console())
    files.write(
        lambda path: write_document(path, JUDGEMENT_KIND, found),
        partial(draw_judgement, found),
        lambda picture: "",
    )
