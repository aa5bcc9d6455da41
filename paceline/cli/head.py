"""The commands around an acceptance head: `paceline head record | train | evaluate | calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from paceline import demo
from paceline.cli.files import ResultFiles
from paceline.cli.loading import use_threads
from paceline.cli.options import flattened, only, without
from paceline.cli.show import print_note, table_console
from paceline.training.acceptance_head.settings import RecordConfig, TrainConfig
from paceline.util.config import require_range
from paceline.util.files import make_folder
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.training.acceptance_head.recording import Recording

head = App(
    name="head",
    help="Acceptance heads for the drafter specdec_pp: record a pair of models, train a head,"
    " judge it, measure thresholds.",
)

Recordings = Annotated[
    Path,
    Parameter(
        name="RECORDINGS", required=True, help="folders that `paceline head record` has filled."
    ),
]
HeadFolder = Annotated[Path, Parameter(name="HEAD", help="folder of the head.")]
flattened("Recording")(RecordConfig)
flattened("Training")(TrainConfig)


@dataclass(frozen=True, slots=True)
class TrainOptions(TrainConfig):
    """Training, where an input that is on by default can be turned off."""

    scalars: Annotated[bool, Parameter(negative="--no-scalars")] = True


@head.command
def record(
    *,
    config: Annotated[
        RecordConfig, without("repetition_penalty", "stop", "ignore_eos")
    ] = RecordConfig(),
) -> None:
    """Let the target answer and note how likely it is to accept what the draft model would have
    drafted.

    Give the sampling settings that decoding will use. Interrupt it at any time; the same command
    goes on.
    """
    use_threads(config.models.threads)
    from paceline.report.prompts import cut_note
    from paceline.training.acceptance_head.record import record as record_answers

    made = record_answers(config, progress=True)
    if cut := made.settings.get("cut"):
        print_note(cut_note(cut))
    mean = float(made.labels.mean()) if len(made) else 0.0
    print_note(
        f"{len(made)} drafted tokens of {len(made.names)} prompts, {mean:.1%} accepted, in"
        f" {config.out}"
    )


@head.command
def train(
    *recordings: Recordings,
    out: Path,
    config: Annotated[TrainOptions | None, without("warmup")] = None,
    models: Annotated[ModelOptions, only("threads")] = ModelOptions(),
) -> None:
    """Train a head on recordings, calibrate it, and report on prompts held out.

    Args:
        out: folder of the head.
    """
    make_folder(out)
    use_threads(models.threads)
    from paceline.training.acceptance_head.evaluate import evaluate as judge
    from paceline.training.acceptance_head.evaluate import print_judgement
    from paceline.training.acceptance_head.recording import read_recording
    from paceline.training.acceptance_head.train import train as train_head

    read = [read_recording(folder) for folder in recordings]
    made = train_head(read, config, progress=True)
    made.save(out)
    print_judgement(judge(made, read), table_console())
    print_note(f"wrote {out}")


@head.command
def evaluate(
    head_folder: HeadFolder,
    /,
    *recordings: Recordings,
    models: Annotated[ModelOptions, only("draft_model", "threads")] = ModelOptions(),
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> None:
    """Judge a head on prompts it was not trained on, beside the draft's own probabilities."""
    use_threads(models.threads)
    from paceline.drafters.specdec_pp.head import AcceptanceHead
    from paceline.training.acceptance_head.evaluate import (
        draw_judgement,
        print_judgement,
        write_judgement,
    )
    from paceline.training.acceptance_head.evaluate import evaluate as judge

    read, draft = _recordings(recordings, models.draft_model)
    judgement = judge(AcceptanceHead.load(head_folder, draft), read)
    print_judgement(judgement, files.console())
    files.write(
        partial(write_judgement, judgement), partial(draw_judgement, judgement), lambda picture: ""
    )


@head.command
def calibrate(
    head_folder: HeadFolder,
    /,
    *recordings: Recordings,
    limit: int = 0,
    models: ModelOptions = ModelOptions(),
) -> None:
    """Measure by decoding what each threshold costs, so that threshold=auto can choose; the head's
    card keeps it.

    Args:
        limit: most prompts of each recording; 0 = all.
    """
    require_range("head calibrate", "limit", limit, 0)
    use_threads(models.threads)
    from paceline.drafters.specdec_pp.head import AcceptanceHead
    from paceline.model.loading import load_draft, load_model
    from paceline.training.acceptance_head.calibrate import calibrate as measure
    from paceline.training.acceptance_head.calibrate import print_curve
    from paceline.training.acceptance_head.recording import read_recording

    target = load_model(demo.target_of(models.model), models.dtype, models.device)
    draft = load_draft(models.draft_model or models.model, models.dtype, str(target.device))
    loaded = AcceptanceHead.load(head_folder, draft)
    made = measure(
        loaded,
        [read_recording(folder) for folder in recordings],
        target,
        draft,
        limit,
        progress=True,
    )
    made.save(head_folder)
    print_curve(made, table_console())
    print_note(f"wrote {head_folder}")


def _recordings(
    folders: Sequence[Path], draft_model: str | None
) -> tuple[list[Recording], PreTrainedModel]:
    """Return the recordings, and their draft model: the one named, else the one they name."""
    from paceline.model.loading import load_draft
    from paceline.training.acceptance_head.recording import read_recording

    read = [read_recording(folder) for folder in folders]
    return read, load_draft(draft_model or read[0].settings["draft"])
