"""The command `paceline replay`: drafters on recorded answers, without a model; `--fit` writes the calibration of `sssd`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from paceline.cli_bench import split_specs, with_store
from paceline.cli_datastore import Store as StorePath
from paceline.cli_datastore import datastore as datastore_app
from paceline.cli_datastore import load_tokenizer
from paceline.cli_files import ResultFiles, table_console
from paceline.drafters import REGISTRY, create, entry
from paceline.errors import ConfigError
from paceline.replay import Trace, replay
from paceline.replay_traces import read_traces

if TYPE_CHECKING:
    from paceline.bench.replay_report import ReplayRow
    from paceline.drafter import Drafter

Traces = Annotated[list[Path], typer.Argument(metavar="TRACES...", help="JSON lines with prompt and output, text or ids.")]
Drafters = Annotated[
    list[str] | None, typer.Option("--drafters", help="Specs separated by spaces or commas; default: prompt_lookup, sssd.")
]
Tokenizer = Annotated[str | None, typer.Option(help="Directory or hub id; 'demo'; 'mistral-common'. Not needed for ids.")]
Store = Annotated[
    str | None,
    typer.Option("--datastore", help="Folder of a store, for --fit and drafters that name none; 'demo' is the embedded one."),
]
Fit = Annotated[Path | None, typer.Option("--fit", metavar="FILE", help="Fit the calibration of sssd and write it, no table.")]


def replay_command(
    traces: Traces,
    drafters: Drafters = None,
    datastore: Store = None,
    tokenizer: Tokenizer = None,
    nodes: Annotated[str, typer.Option(help="Tree sizes, separated by commas.")] = "8,16,32",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1",
    limit: Annotated[int | None, typer.Option(min=1, help="Most answers of each file.")] = None,
    fit: Fit = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Draw tokens per step there.")] = None,
) -> None:
    """Run recorded answers through retrieval drafters: tokens per step, drafted per step, microseconds per step."""
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    files = ResultFiles(json_file, png)
    found: dict[str, list[Trace]] = {path.stem: list(read_traces(path, loaded, limit)) for path in traces}
    if fit is not None:
        _fit(found, datastore, loaded, fit)
        return
    specs = [with_store(spec, datastore) for spec in split_specs(drafters or ["prompt_lookup,sssd"], REGISTRY)]
    rows = _rows(found, specs, loaded, _numbers("nodes", nodes), _numbers("batch", batch))
    from paceline.bench.replay_report import draw_replays, print_replays, write_replays

    print_replays(rows, table_console())
    files.write(partial(write_replays, rows), partial(draw_replays, rows), lambda picture: "")


@datastore_app.command("calibrate")
def calibrate_command(
    datastore: StorePath,
    traces: Traces,
    fit: Annotated[Path, typer.Option("--output", help="The calibration that is written.")],
    tokenizer: Tokenizer = None,
) -> None:
    """Fit the calibration of sssd for a store on recorded answers; the same as `paceline replay --fit`."""
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    _fit({path.stem: list(read_traces(path, loaded)) for path in traces}, datastore, loaded, fit)


def _rows(found: dict[str, list[Trace]], specs: list[str], tokenizer: Any, nodes: list[int], batch: list[int]) -> list[ReplayRow]:
    from paceline.bench.replay_report import ReplayRow

    rows = []
    with Console(stderr=True).status("replay") as status:
        for spec in specs:
            replay(_drafter(spec, tokenizer), next(iter(found.values()))[:1], nodes[0])  # compiles
            for name, some in found.items():
                for size in nodes:
                    for together in batch:
                        status.update(f"{name}, {spec}, {size} nodes, batch {together}")
                        fresh = _drafter(spec, tokenizer)  # pia, and live stores, know the answers they have been through
                        rows.append(ReplayRow(spec, name, replay(fresh, some, size, batch_size=together)))
    return rows


def _fit(found: dict[str, list[Trace]], datastore: str | None, tokenizer: Any, path: Path) -> None:
    from paceline.datastore import open as open_store
    from paceline.replay_fit import calibrate

    if datastore is not None:
        open_store(datastore, tokenizer=tokenizer)  # of another tokenizer: refused before anything is recorded
    out = Console(stderr=True, highlight=False)
    with out.status("record") as status:
        fitted = calibrate(found, datastore, lambda what: status.update(what))
    fitted.save(path)
    out.print(Text(f"wrote {path}: {fitted.about}", style="dim"))


def _drafter(spec: str, tokenizer: Any) -> Drafter:
    name = spec.partition(":")[0].strip()
    if entry(name).needs_draft_model:
        raise ConfigError(f"replay has no models, and drafter {name!r} needs one; choose a retrieval drafter, such as sssd.")
    drafter = create(spec)
    drafter.check_tokenizer(tokenizer)
    return drafter


def _numbers(name: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"replay: {name} is {text!r}; whole numbers of at least 1, separated by commas, are allowed.")
    return numbers
