"""Implement the commands `paceline head record | train | evaluate | calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline import demo
from paceline.cli.files import ResultFiles
from paceline.cli.loading import use_threads
from paceline.cli.options import (
    WITHOUT_MODEL,
    TargetModel,
    command_group,
    flattened,
    only,
    switchable,
    without,
)
from paceline.cli.show import print_note, table_console
from paceline.training.acceptance_head.settings import RecordConfig, TrainConfig
from paceline.util.config import require_range
from paceline.util.files import make_folder
from paceline.util.options import ModelOptions, changed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.training.acceptance_head.recording import Recording

head = command_group("head")

Recordings = Annotated[
    Path,
    Parameter(
        name="RECORDING",
        required=True,
        help="Folder written by `paceline head record`; repeatable.",
    ),
]
HeadFolder = Annotated[Path, Parameter(name="HEAD", help="Folder of the acceptance head.")]
flattened("Recording")(RecordConfig)
flattened("Training")(TrainConfig)
switchable(TrainConfig, "scalars")


@head.command(sort_key=1)
def record(
    model: TargetModel = demo.NAME,
    /,
    *,
    config: Annotated[
        RecordConfig,
        without("model", "unpack", "weights", "repetition_penalty", "stop", "ignore_eos"),
    ] = RecordConfig(),
) -> None:
    """Record data for training an acceptance head.

    The recording contains the target's answers and the acceptance probability of each draft token.
    Use the sampling settings with which you will decode later. Recording can be interrupted at any
    time; to resume it, run the same command again.

    Example: paceline head record demo --prompts prompts.jsonl --out recording
    """
    config = changed(config, model=model)
    use_threads(config.models.threads)
    from paceline.report.prompts import cut_note
    from paceline.training.acceptance_head.record import record as record_answers

    recording = record_answers(config, progress=True)
    if cut := recording.settings.get("cut"):
        print_note(cut_note(cut))
    mean = float(recording.labels.mean()) if len(recording) else 0.0
    print_note(
        f"{len(recording)} draft tokens of {len(recording.names)} prompts, {mean:.1%} accepted, in"
        f" {config.out}"
    )


@head.command(sort_key=2)
def train(
    *recordings: Recordings,
    out: Path,
    config: Annotated[TrainConfig | None, without("warmup")] = None,
    models: Annotated[ModelOptions, only("threads")] = ModelOptions(),
) -> None:
    """Train an acceptance head, and report its quality.

    After training, the command calibrates the head's probabilities and measures the head's quality
    on held-out prompts.

    Example: paceline head train recording --out head

    Args:
        out: Folder in which the acceptance head is stored.
    """
    make_folder(out)
    use_threads(models.threads)
    from paceline.training.acceptance_head.evaluate import evaluate as judge
    from paceline.training.acceptance_head.evaluate import print_judgement
    from paceline.training.acceptance_head.recording import read_recording
    from paceline.training.acceptance_head.train import train as train_head

    loaded = [read_recording(folder) for folder in recordings]
    trained = train_head(loaded, config, progress=True)
    trained.save(out)
    print_judgement(judge(trained, loaded), table_console())
    print_note(f"wrote {out}")


@head.command(sort_key=3)
def evaluate(
    head_folder: HeadFolder,
    /,
    *recordings: Recordings,
    draft_model: str | None = None,
    models: Annotated[ModelOptions, only("threads")] = ModelOptions(),
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> None:
    """Evaluate an acceptance head on held-out prompts.

    Example: paceline head evaluate head recording

    Args:
        draft_model: Draft model: directory, hub id or GGUF file. Default: the draft model used for
            the recording.
    """
    use_threads(models.threads)
    from paceline.drafters.specdec_pp.head import AcceptanceHead
    from paceline.training.acceptance_head.evaluate import (
        draw_judgement,
        print_judgement,
        write_judgement,
    )
    from paceline.training.acceptance_head.evaluate import evaluate as judge

    loaded, draft = _recordings(recordings, draft_model)
    judgement = judge(AcceptanceHead.load(head_folder, draft), loaded)
    print_judgement(judgement, files.console())
    files.write(
        partial(write_judgement, judgement), partial(draw_judgement, judgement), lambda picture: ""
    )


@head.command(sort_key=4)
def calibrate(
    model: TargetModel,
    head_folder: HeadFolder,
    /,
    *recordings: Recordings,
    limit: int = 0,
    models: Annotated[ModelOptions, WITHOUT_MODEL] = ModelOptions(),
) -> None:
    """Measure the cost of each stopping threshold, and store the costs.

    The command decodes prompts with each threshold, and stores the costs in the card (the
    head's metadata). A drafter with threshold=auto uses the stored costs.

    Example: paceline head calibrate demo head recording --limit 20

    Args:
        limit: Maximum number of prompts per recording; at least 0; 0 uses all prompts.
    """
    require_range("head calibrate", "limit", limit, 0)
    models = replace(models, model=model)
    use_threads(models.threads)
    from paceline.drafters.specdec_pp.head import AcceptanceHead
    from paceline.model.loading import load_draft, load_model
    from paceline.training.acceptance_head.calibrate import calibrate as measure
    from paceline.training.acceptance_head.calibrate import print_curve
    from paceline.training.acceptance_head.recording import read_recording

    target = load_model(
        demo.target_of(models.model), models.dtype, models.device, models.unpack, models.weights
    )
    draft = load_draft(models.draft_model or models.model, models.dtype, str(target.device))
    loaded = AcceptanceHead.load(head_folder, draft)
    calibrated = measure(
        loaded,
        [read_recording(folder) for folder in recordings],
        target,
        draft,
        limit,
        progress=True,
    )
    calibrated.save(head_folder)
    print_curve(calibrated, table_console())
    print_note(f"wrote {head_folder}")


def _recordings(
    folders: Sequence[Path], draft_model: str | None
) -> tuple[list[Recording], PreTrainedModel]:
    """Return the recordings, and the draft model (by default, that of the recordings)."""
    from paceline.model.loading import load_draft
    from paceline.training.acceptance_head.recording import read_recording

    loaded = [read_recording(folder) for folder in folders]
    return loaded, load_draft(draft_model or loaded[0].settings["draft"])
