"""Implement the commands `paceline draft train | evaluate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline import demo
from paceline.cli.files import ResultFiles
from paceline.cli.loading import use_threads
from paceline.cli.options import TargetModel, command_group, flattened, only, without
from paceline.cli.show import print_note, table_console
from paceline.training.draft.settings import DraftTraining
from paceline.util.config import require_range
from paceline.util.options import ModelOptions

draft = command_group("draft")

Recordings = Annotated[
    list[Path],
    Parameter(
        name=("--recording", "--recordings"), help="File written by `paceline record`; repeatable."
    ),
]
flattened("Training")(DraftTraining)


@draft.command(sort_key=1)
def train(
    model: TargetModel,
    /,
    *,
    recordings: Recordings,
    out: Path,
    texts: Annotated[list[str] | None, Parameter(name=("--text", "--texts"))] = None,
    config: DraftTraining = DraftTraining(),
    models: Annotated[ModelOptions, only("threads")] = ModelOptions(),
) -> None:
    """Train a draft model on the target's recorded answers and on text.

    You can interrupt training at any time. To resume training, run the same command again.

    Example: paceline draft train smollm2 --recording answers.jsonl --out draft

    Args:
        out: Folder in which the best draft model so far is stored. At the end, the command
            also writes the learning curve to this folder.
        texts: Text or chat file for pre-training (.jsonl, .txt, .npy, .parquet), with the fields
            that `paceline datastore` reads; repeatable. Default: none.
    """
    use_threads(models.threads)
    from paceline.model.cached_lm import CachedLM
    from paceline.training.draft.plot import draw_curve
    from paceline.training.draft.prepare import prepare
    from paceline.training.draft.start import shaped_as_start
    from paceline.training.draft.train import DraftTrainer
    from paceline.training.loop import TrainingReport

    config = shaped_as_start(config)
    loaded, data, folder = prepare(model, recordings, texts or [], out, config)
    if folder.finished:
        accepted = f"{folder.record().best.per_chain:.3f} of {config.length} draft tokens accepted"
        return print_note(f"{out} is finished: {accepted} per chain")
    if config.uses_target_states:
        data = data.with_states(CachedLM(loaded), config, progress=True)
    trainer = DraftTrainer(loaded, data, config, folder)
    del loaded
    try:
        trainer.run(TrainingReport(print_note, shown=True))
    except KeyboardInterrupt:
        print_note(
            f"interrupted; {out} holds the last checkpoint; run the same command again to resume"
        )
        raise
    record = folder.finish()
    draw_curve(record, out / "curve.png")
    best = record.best
    print_note(
        f"wrote {out}: {best.per_chain:.3f} of {config.length} draft tokens accepted per chain,"
        f" {best.agreement:.1%} of tokens agree, {record.kept} tokens in its vocabulary"
    )


@draft.command(sort_key=2)
def evaluate(
    model: TargetModel,
    draft_folder: Annotated[
        str, Parameter(name="DRAFT", help="Draft model: directory or hub id; 'demo' is built in.")
    ],
    /,
    *,
    recordings: Recordings,
    length: int = 4,
    models: Annotated[ModelOptions, only("dtype", "threads")] = ModelOptions(),
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> None:
    """Measure a draft model's acceptance, cost and speed-up on held-out answers.

    Example: paceline draft evaluate smollm2 draft --recording answers.jsonl

    Args:
        length: Number of draft tokens per chain; at least 1.
    """
    require_range("draft evaluate", "length", length, 1)
    use_threads(models.threads)
    from paceline.model.cached_lm import CachedLM
    from paceline.model.identity import model_identity
    from paceline.model.loading import draft_lm, load_model
    from paceline.report.documents import write_document
    from paceline.training.draft.evaluate import JUDGEMENT_KIND, evaluate, print_draft_judgement
    from paceline.training.draft.plot import draw_judgement
    from paceline.training.text_chunks import recorded_chunks

    loaded = load_model(demo.target_of(model), models.dtype)
    answers = recorded_chunks(recordings, model_identity(loaded)[0])
    judgement = evaluate(draft_lm(draft_folder), CachedLM(loaded), answers, length)
    print_draft_judgement(judgement, files.console() or table_console())
    files.write(
        lambda path: write_document(path, JUDGEMENT_KIND, judgement),
        partial(draw_judgement, judgement),
        lambda picture: "",
    )
