"""Implement the command `paceline replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.files import ResultFiles
from paceline.cli.loading import load_tokenizer
from paceline.cli.options import flattened, split_specs, with_store, without
from paceline.cli.show import INTERRUPTED, print_note
from paceline.drafters import create, entry
from paceline.errors import ConfigError
from paceline.util.config import split_spec

if TYPE_CHECKING:
    from paceline.core.drafter import Drafter, TopTokens
    from paceline.replay.report import ReplayRow
    from paceline.replay.run import Trace

_DEFAULT_DRAFTERS = ("prompt_lookup", "sssd")
Traces = Annotated[
    Path,
    Parameter(
        name="TRACE",
        required=True,
        help="File written by `paceline record`, or JSON lines with prompt and output (text or"
        " ids); repeatable.",
    ),
]
TraceTokenizer = Annotated[
    str | None,
    Parameter(
        help="Tokenizer for answers recorded as text: directory, hub id, 'demo' or"
        " 'mistral-common'. Default: none; answers recorded as token ids need no tokenizer."
    ),
]


@flattened("Simulation")
@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Drafters to simulate, with the tree and batch sizes.

    Attributes:
        drafters: Drafter specs; repeatable, or separated by spaces or commas. Default:
            prompt_lookup and sssd.
        nodes: Number of draft tokens per tree; at least 1. Separate numbers with commas.
        batch: Number of requests per step; at least 1. Separate numbers with commas.
    """

    drafters: Annotated[tuple[str, ...], Parameter(name=("--drafter", "--drafters"))] = ()
    nodes: str = "8,16,32"
    batch: str = "1"


def replay(
    *traces: Traces,
    simulation: SimulationOptions = SimulationOptions(),
    datastore: str | None = None,
    tokenizer: TraceTokenizer = None,
    limit: int | None = None,
    files: Annotated[ResultFiles, without("markdown")] = ResultFiles(),
) -> int:
    """Simulate drafters on recorded answers, without a model.

    The table shows the accepted tokens, the draft tokens and the microseconds per step.

    Example: paceline replay answers.jsonl --drafters prompt_lookup,sssd

    Args:
        datastore: Folder of the datastore for drafters whose spec does not name one; 'demo'
            is the built-in datastore. Default: none.
        limit: Maximum number of answers per file; at least 1. Default: all answers.
    """
    if limit is not None and limit < 1:
        raise ConfigError(
            f"\0replay: limit\0: got {limit}; expected at least 1. Leave it out for all answers."
        )
    answers, loaded = read(traces, tokenizer, limit)
    names = split_specs(simulation.drafters or _DEFAULT_DRAFTERS)
    specs = [with_store(spec, datastore) for spec in names]
    from paceline.replay.report import draw_replays, print_replays, write_replays
    from paceline.replay.traces import read_top_tokens

    top_tokens = {path.stem: read_top_tokens(path, limit) for path in traces}
    sizes = list(product(_numbers("nodes", simulation.nodes), _numbers("batch", simulation.batch)))
    rows, complete = _rows(answers, top_tokens, specs, loaded, sizes)
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
    """Return the answers by file name, and the tokenizer of all answers.

    Without `tokenizer`, the function returns the fingerprint in the recorded answers instead, or
    None if the fingerprint is unknown.
    """
    from paceline.replay.traces import read_traces, tokenizer_of

    loaded = tokenizer_of(traces) if tokenizer is None else load_tokenizer(tokenizer)
    return {path.stem: list(read_traces(path, loaded, limit)) for path in traces}, loaded


def _rows(
    answers: dict[str, list[Trace]],
    top_tokens: dict[str, list[TopTokens] | None],
    specs: list[str],
    tokenizer: Any,
    sizes: list[tuple[int, int]],
) -> tuple[list[ReplayRow], bool]:
    """Return the results of the replays, and whether all replays were completed.

    Ctrl-C ends the replays early.

    Args:
        sizes: Pairs of the number of nodes per tree and the number of requests per step.
    """
    from paceline.replay.report import ReplayRow
    from paceline.replay.run import replay as run

    rows = []
    with Console(stderr=True).status("replay") as status:
        try:
            for spec in specs:
                name, first_tokens = next(iter(top_tokens.items()))
                # compile before timing
                run(
                    _drafter(spec, tokenizer),
                    answers[name][:1],
                    sizes[0][0],
                    top_tokens=first_tokens and first_tokens[:1],
                )
                for (name, traces), (size, batch_size) in product(answers.items(), sizes):
                    status.update(f"{name}, {spec}, {size} nodes, batch {batch_size}")
                    # pia and updated datastores keep the text they have seen
                    fresh = _drafter(spec, tokenizer)
                    rows.append(
                        ReplayRow(
                            spec,
                            name,
                            run(
                                fresh,
                                traces,
                                size,
                                batch_size=batch_size,
                                top_tokens=top_tokens[name],
                            ),
                        )
                    )
        except KeyboardInterrupt:
            return rows, False
    return rows, True


def _drafter(spec: str, tokenizer: Any) -> Drafter:
    name, _ = split_spec(spec)
    if entry(name).needs_draft_model:
        raise ConfigError(
            f"replay runs no models, but drafter {name!r} needs one. Choose a retrieval drafter,"
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
            f"\0replay: {name}\0: got {text!r}; expected whole numbers of at least 1, separated by"
            " commas."
        )
    return numbers
