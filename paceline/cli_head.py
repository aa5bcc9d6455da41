"""The commands around an acceptance head: `paceline head record | train | evaluate | calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from paceline import demo
from paceline.cli_files import ResultFiles, table_console
from paceline.cli_options import Device, Draft, Dtype, MaxNew, MinP, Model, Seed, Temperature, Threads, TopK, TopP, use_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.head.recording import Recording

head = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Acceptance heads for the drafter specdec_pp: record a pair of models, train a head, judge it, measure thresholds.",
)  # fmt: skip

Recordings = Annotated[list[Path], typer.Argument(help="Folders that `paceline head record` has filled.")]
HeadFolder = Annotated[Path, typer.Argument(help="Folder of the head.")]


@head.command("record")
def record_command(
    out: Annotated[Path, typer.Option(help="Folder of the recording; an interrupted one is gone on with.")],
    model: Model = demo.NAME,
    draft_model: Draft = None,
    prompts: Annotated[list[Path] | None, typer.Option(help="JSONL prompts, as for bench; may be given several times.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many prompts of each file; 0 = all.")] = 0,
    every: Annotated[int, typer.Option(min=1, help="Only each n-th prompt of each file.")] = 1,
    skip_every: Annotated[int, typer.Option(min=0, help="Leave out each n-th prompt of each file, to report on later.")] = 0,
    keep: Annotated[float, typer.Option(help="Chance that a position keeps the target's token (the paper's r).")] = 0.15,
    mixtures: Annotated[int, typer.Option(min=1, help="Mixed sequences per answer.")] = 1,
    max_new_tokens: MaxNew = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = 0,
    batch: Annotated[int, typer.Option(min=1, help="Prompts answered together, and kept together.")] = 8,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Let the target answer and note how likely it is to accept what the draft model would have drafted.

    Give the sampling settings that decoding will use. Interrupt it at any time; the same command goes on.
    """
    use_threads(threads)
    from paceline.head.record import RecordConfig, record

    config = RecordConfig(
        model, draft_model, out, tuple(prompts or ()), limit, every, skip_every, keep, mixtures, max_new_tokens, temperature,
        top_k, top_p, min_p, seed, batch, dtype, device,
    )  # fmt: skip
    made = record(config, progress=True)
    mean = float(made.labels.mean()) if len(made) else 0.0
    _say(f"{len(made)} drafted tokens of {len(made.names)} prompts, {mean:.1%} accepted, in {out}")


@head.command("train")
def train_command(
    recordings: Recordings,
    out: Annotated[Path, typer.Option(help="Folder of the head.")],
    depth: Annotated[int, typer.Option(min=0, max=4, help="Residual blocks (the paper's D).")] = 3,
    reject_weight: Annotated[float, typer.Option(help="Weight of rejections in the loss (the paper's w_rej).")] = 6.0,
    scalars: Annotated[bool, typer.Option(help="The last layer also reads how sure the draft was.")] = True,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(min=0)] = 0.01,
    batch: Annotated[int, typer.Option(min=1, help="Positions per step.")] = 1024,
    dev: Annotated[float, typer.Option(help="Share of the prompts that calibration is fitted on.")] = 0.1,
    held_out: Annotated[float, typer.Option(help="Share of the prompts that is only reported on.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the split, the first weights and the order.")] = 0,
    note: Annotated[str, typer.Option(help="For the card, such as the prompts' sources and licences.")] = "",
    threads: Threads = None,
) -> None:
    """Train a head on recordings, calibrate it, and report on prompts held out."""
    use_threads(threads)
    from paceline.head.evaluate import evaluate, print_judgement
    from paceline.head.recording import read_recording
    from paceline.head.train import TrainConfig, train

    config = TrainConfig(
        depth, reject_weight, scalars, epochs, lr, weight_decay, batch, dev=dev, held_out=held_out, seed=seed, note=note
    )  # fmt: skip
    made = train(recordings, config, progress=True)
    made.save(out)
    print_judgement(evaluate(made, [read_recording(folder) for folder in recordings]), table_console())
    _say(f"wrote {out}")


@head.command("evaluate")
def evaluate_command(
    head_folder: HeadFolder,
    recordings: Recordings,
    draft_model: Draft = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the reliability plot here.")] = None,
    threads: Threads = None,
) -> None:
    """Judge a head on prompts it was not trained on, beside the draft's own probabilities."""
    use_threads(threads)
    from paceline.acceptance import AcceptanceHead
    from paceline.head.evaluate import draw_judgement, evaluate, print_judgement, write_judgement

    files = ResultFiles(json_file, png)
    read, draft = _recordings(recordings, draft_model)
    judgement = evaluate(AcceptanceHead.load(head_folder, draft), read)
    print_judgement(judgement, table_console())
    files.write(
        lambda path: write_judgement(judgement, path), lambda path: draw_judgement(judgement, path), lambda picture: ""
    )  # fmt: skip


@head.command("calibrate")
def calibrate_command(
    head_folder: HeadFolder,
    recordings: Recordings,
    model: Model = demo.NAME,
    draft_model: Draft = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many prompts of each recording; 0 = all.")] = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure by decoding what each threshold costs, so that threshold=auto can choose; the head's card keeps it."""
    use_threads(threads)
    from paceline.acceptance import AcceptanceHead
    from paceline.head.calibrate import calibrate, print_curve
    from paceline.head.recording import read_recording
    from paceline.loading import load_model

    target = load_model(demo.target_of(model), dtype, device)
    draft = load_model(demo.draft_of(draft_model or model), dtype, str(target.device))
    loaded = AcceptanceHead.load(head_folder, draft)
    made = calibrate(loaded, [read_recording(folder) for folder in recordings], target, draft, limit, progress=True)
    made.save(head_folder)
    print_curve(made, table_console())
    _say(f"wrote {head_folder}")


def _recordings(folders: list[Path], draft_model: str | None) -> tuple[list[Recording], PreTrainedModel]:
    """The recordings, and their draft model: the one named, else the one they name."""
    from paceline.head.recording import read_recording
    from paceline.loading import load_model

    read = [read_recording(folder) for folder in folders]
    return read, load_model(demo.draft_of(draft_model or read[0].settings["draft"]))


def _say(text: str) -> None:
    Console(stderr=True).print(Text(text, style="dim"))
