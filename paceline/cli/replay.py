"""The command `paceline replay`: drafters on recorded answers, without a model; `--fit` writes
the calibration of `sssd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.files import ResultFiles
from paceline.cli.loading import load_tokenizer
from paceline.cli.options import split_specs, with_store, without
from paceline.cli.show import INTERRUPTED, print_note
from paceline.drafters import available, create, entry
from paceline.errors import ConfigError
from paceline.util.config import split_spec
from paceline.util.files import require_writable

if TYPE_CHECKING:
    from paceline.core.drafter import Drafter, TopTokens
    from paceline.replay.report import ReplayRow
    from paceline.replay.run import Trace

Traces = Annotated[
    Path,
    Parameter(
        name="TRACES",
        required=True,
        help="files of `paceline record`; or JSON lines with prompt and output, text or ids.",
    ),
]
TraceTokenizer = Annotated[
    str | None,
    Parameter(
        help="directory or hub id; 'demo' is the embedded pair's; 'mistral-common'; not needed for"
        " ids."
    ),
]


def replay(
    *traces: Traces,
    drafters: Annotated[list[str] | None, Parameter(name="--drafters")] = None,
    datastore: str | None = None,
    tokenizer: TraceTokenizer = None,
    nodes: str = "8,16,32",
    batch: str = "1",
    limit: int | None = None,
    fit: Path | None = None,
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> int:
    """Run recorded answers through retrieval drafters: tokens per step, drafted per step,
    microseconds per step.

    Args:
        drafters: specs separated by spaces or commas; default: prompt_lookup, sssd.
        datastore: folder of a store, for --fit and drafters that name none; 'demo' is the embedded
            one.
        nodes: tree sizes, separated by commas.
        batch: batch sizes, separated by commas.
        limit: most answers of each file.
        fit: file for the calibration of sssd, which is fitted and written in place of a table.
    """
    if limit is not None and limit < 1:
        raise ConfigError(
            f"replay: limit: got {limit}; expected at least 1. Leave it out for all answers."
        )
    found, loaded = read(traces, tokenizer, limit)
    if fit is not None:
        fit_calibration(found, datastore, loaded, fit)
        return 0
    specs = [
        with_store(spec, datastore)
        for spec in split_specs(drafters or ["prompt_lookup,sssd"], available())
    ]
    from paceline.replay.report import draw_replays, print_replays, write_replays
    from paceline.replay.traces import read_told

    told = {path.stem: read_told(path, limit) for path in traces}
    rows, complete = _rows(
        found, told, specs, loaded, _numbers("nodes", nodes), _numbers("batch", batch)
    )
    if not complete:
        print_note(f"interrupted; {len(rows)} replays were finished")
    if not rows:
        return INTERRUPTED

    print_replays(rows, files.console())
    files.write(partial(write_replays, rows), partial(draw_replays, rows), lambda picture: "")
    return 0 if complete else INTERRUPTED


def read(
    traces: Sequence[Path], tokenizer: str | None, limit: int | None = None
) -> tuple[dict[str, list[Trace]], Any]:
    """Return the answers of each file, by its name, and their tokenizer, or its fingerprint;
    None = not known.
    """
    from paceline.replay.traces import read_traces, tokenizer_of

    loaded = tokenizer_of(traces) if tokenizer is None else load_tokenizer(tokenizer)
    return {path.stem: list(read_traces(path, loaded, limit)) for path in traces}, loaded


def fit_calibration(
    found: dict[str, list[Trace]], datastore: str | None, tokenizer: Any, path: Path
) -> None:
    """Fit the calibration of sssd on recorded answers and write it."""
    require_writable(path)
    from paceline.datastore import open as open_store
    from paceline.replay.fit import AnswerKind, calibrate

    if datastore is not None:
        open_store(
            datastore, tokenizer=tokenizer
        )  # of another tokenizer: refused before anything is recorded
    with Console(stderr=True, highlight=False).status("record") as status:
        fitted = calibrate(
            {name: AnswerKind(some, datastore) for name, some in found.items()},
            lambda what: status.update(what),
        )
    fitted.save(path)
    print_note(f"wrote {path}: {fitted.about}")


def _rows(
    found: dict[str, list[Trace]],
    told: dict[str, list[TopTokens] | None],
    specs: list[str],
    tokenizer: Any,
    nodes: list[int],
    batch: list[int],
) -> tuple[list[ReplayRow], bool]:
    """Return the replays, and whether they are all: Ctrl-C ends with what is finished."""
    from paceline.replay.report import ReplayRow
    from paceline.replay.run import replay as run

    rows = []
    with Console(stderr=True).status("replay") as status:
        try:
            for spec in specs:
                name, top = next(iter(told.items()))
                run(
                    _drafter(spec, tokenizer), found[name][:1], nodes[0], top_tokens=top and top[:1]
                )  # compiles
                for (name, some), size, together in product(found.items(), nodes, batch):
                    status.update(f"{name}, {spec}, {size} nodes, batch {together}")
                    fresh = _drafter(
                        spec, tokenizer
                    )  # pia, and live stores, know the answers they have been through
                    rows.append(
                        ReplayRow(
                            spec,
                            name,
                            run(fresh, some, size, batch_size=together, top_tokens=told[name]),
                        )
                    )
        except KeyboardInterrupt:
            return rows, False
    return rows, True


def _drafter(spec: str, tokenizer: Any) -> Drafter:
    name, _ = split_spec(spec)
    if entry(name).needs_draft_model:
        raise ConfigError(
            f"replay has no models, and drafter {name!r} needs one; choose a retrieval drafter,"
            " such as sssd."
        )
    drafter = create(spec)
    drafter.check_tokenizer(tokenizer)
    return drafter


def _numbers(name: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(
            f"replay: {name}: got {text!r}; expected whole numbers of at least 1, separated by"
            " commas."
        )
    return numbers
