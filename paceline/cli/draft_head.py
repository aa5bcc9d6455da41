"""Implement the command that trains a hidden-state draft head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.loading import use_threads
from paceline.cli.options import TargetModel, command_group, flattened, only
from paceline.cli.show import print_note
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.util.files import require_writable
from paceline.util.options import ModelOptions

draft_head = command_group("draft-head")

Recordings = Annotated[
    list[Path],
    Parameter(
        name=("--recording", "--recordings"), help="File written by `paceline record`; repeatable."
    ),
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
    """Train a hidden-state draft head on recorded answers and text.

    If you interrupt the training, the file contains the draft head from the best epoch so far.

    Example: paceline draft-head train smollm2 --recording answers.jsonl --out head

    Args:
        out: Write the draft head to this file (safetensors). Pass the file to the auto drafter as
            `draft_head`.
        texts: Additional text or chat file for training (.jsonl, .txt, .npy, .parquet), with the
            fields that `paceline datastore` reads; repeatable. Default: none.
    """
    require_writable(out)
    use_threads(models.threads)
    from paceline.training.draft_head.prepare import prepare
    from paceline.training.draft_head.train import DraftHeadTrainer
    from paceline.training.loop import TrainingReport

    data = prepare(model, recordings, texts or [], config, models, progress=True)
    trainer = DraftHeadTrainer(data, config, out)
    try:
        trainer.run(TrainingReport(print_note, shown=True))
    except KeyboardInterrupt:
        state = (
            f"{out} holds the best epoch: {trainer.best}"
            if trainer.best
            else "nothing was written yet"
        )
        print_note(f"interrupted; {state}")
        raise
    print_note(f"wrote {out}: {trainer.best}")
