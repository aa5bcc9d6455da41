"""Accepted tokens against the size of the tree, on recorded answers (Marzollo et al. 2024, figure 4, section 4.2)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track

from paceline.bench.replay_report import ReplayRow
from paceline.bench.sssd_costs import SIZES
from paceline.bench.sssd_stores import documents
from paceline.drafter import Drafter
from paceline.drafters import create
from paceline.replay import ReplayResult, Trace, replay
from paceline.sequence import SamplingParams, Sequence
from paceline.tree import DraftTree

_ORDER = (16, 4, 64, 8, 32, 2, 48, 24, 12)  # in which sizes are replayed, as far as time allows
_QUERY = 4  # newest tokens that the paper's fusion looks up
_WARM_ANSWERS = 10_000  # that `pia` learns beforehand, as in the paper
WARM_TOKENS = 50_000  # and no more than this, as every size begins anew


@dataclass(frozen=True, slots=True)
class Method:
    """A drafter of figure 4.

    Attributes:
        options: of the drafter. stored: it reads the datastore. warmed: it learns the store's documents beforehand.
        window: newest tokens that it is shown; 0 = all.
    """

    name: str
    drafter: str
    options: tuple[tuple[str, Any], ...] = ()
    stored: bool = False
    warmed: bool = False
    window: int = 0


BOTH, REQUEST, STORE, LEAK = "both", "request", "datastore", "window"  # sources; LEAK: what the newest tokens alone give
REST, PIA = "rest", "pia"


def published(source: str) -> str:
    """The source with the paper's hand-set weights in place of the calibration."""
    return f"{source}, paper's"


_WIDE = (("nodes", max(SIZES)),)
_PAPER = (*_WIDE, ("fusion", "paper"))
METHODS = (
    Method(BOTH, "sssd", _WIDE, stored=True),
    Method(REQUEST, "sssd", _WIDE),
    Method(published(BOTH), "sssd", _PAPER, stored=True),
    Method(published(REQUEST), "sssd", _PAPER),
    Method(published(STORE), "sssd", _PAPER, stored=True, window=_QUERY),
    Method(published(LEAK), "sssd", _PAPER, window=_QUERY),
    Method(REST, "rest", stored=True),
    Method(PIA, "pia", warmed=True),
)


@dataclass(frozen=True, slots=True)
class Study:
    """Replays of several sets of recorded answers.

    Attributes:
        answers, tokens: of each set.
    """

    complete: bool
    answers: dict[str, int]
    tokens: dict[str, int]
    rows: tuple[ReplayRow, ...]

    @staticmethod
    def read(values: dict[str, Any]) -> Study:
        """From its JSON form."""
        rows = (ReplayRow(one["drafter"], one["traces"], ReplayResult(**one["result"])) for one in values["rows"])
        return Study(**{**values, "rows": tuple(rows)})

    @property
    def sizes(self) -> list[int]:
        """The s_q that were replayed, 1 for plain decoding among them, where anything was."""
        return sorted({1, *(row.result.max_nodes + 1 for row in self.rows)}) if self.rows else []

    @property
    def methods(self) -> list[str]:
        """Names of the methods that were replayed."""
        return list(dict.fromkeys(row.drafter for row in self.rows))

    @property
    def fusions(self) -> list[str]:
        """The method with all sources there are, and the same with the paper's weights."""
        main = BOTH if BOTH in self.methods else REQUEST
        return [main, published(main)]

    def result(self, method: str, size: int, name: str | None = None) -> ReplayResult | None:
        """Of a method at s_q = `size`, on one set (None = on all); None if it was not replayed."""
        found = [
            row.result
            for row in self.rows
            if (row.drafter, row.result.max_nodes) == (method, size - 1) and name in (None, row.traces)
        ]
        if not found:
            return None
        sums = (sum(getattr(one, what) for one in found) for what in ("tokens", "steps", "drafted", "accepted", "seconds"))
        return ReplayResult(size - 1, found[0].batch_size, *sums)

    def rate(self, method: str, size: int, name: str | None = None) -> float | None:
        """Tokens per step likewise; plain decoding has 1."""
        if size == 1:
            return 1.0 if method in self.methods else None
        found = self.result(method, size, name)
        return None if found is None else found.tokens_per_step


NOTHING = Study(True, {}, {}, ())


class Windowed(Drafter):
    """A drafter that is shown the newest tokens of a request only, at each step as those of a new one.

    So a drafter of request and datastore tells what the datastore says, and next to nothing of the request.
    """

    name = "windowed"

    def __init__(self, inner: Drafter, window: int) -> None:
        self._inner, self._window = inner, window

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """What the inner drafter proposes."""
        shown = [Sequence(seq.token_ids[-self._window :], SamplingParams(seq.remaining)) for seq in seqs]
        for seq in shown:
            self._inner.start(seq)
        trees = self._inner.propose(shown, max_nodes)
        for seq in shown:
            self._inner.stop(seq)
        return trees


def replay_all(
    traces: Mapping[str, Seq[Trace]],
    methods: Seq[Method],
    store: str | None,
    *,
    sizes: Seq[int] = _ORDER,
    left: float = 0.0,
    progress: bool = True,
) -> Study:
    """Run answers through every method at every size, a whole size at a time. Ctrl-C keeps the sizes that are done.

    Args:
        traces: answers by set. store: folder of the datastore; None = without the methods that read it.
        left: seconds that may be used, compiling aside; 0 = no limit. One size is always replayed.
    """
    rows, complete = list[ReplayRow](), True
    sources = _Sources(store)
    used = [method for method in methods if store is not None or not method.stored]
    try:
        for method in used:
            if not method.warmed:  # which is plain Python
                replay(sources.drafter(method), next(iter(traces.values()))[:1], 1)  # compiles, once for each machine
        start = time.perf_counter()
        for size in track(sizes, "replays", console=Console(stderr=True), transient=True, disable=not progress):
            found = []
            for method in used:
                drafter = sources.drafter(method)
                found += [ReplayRow(method.name, name, replay(drafter, some, size - 1)) for name, some in traces.items()]
            rows += found
            if 0 < left < time.perf_counter() - start:
                break
    except KeyboardInterrupt:
        complete = False
    tokens = {name: sum(len(output) for _, output in some) for name, some in traces.items()}
    return Study(complete, {name: len(some) for name, some in traces.items()}, tokens, tuple(rows))


class _Sources:
    """Builds drafters on one store."""

    def __init__(self, store: str | None) -> None:
        self._store, self._texts = store, list[list[int]]()

    def drafter(self, method: Method) -> Drafter:
        """A new one; `pia` has learned some of the store's documents."""
        options = dict(method.options)
        if method.stored:
            options["datastore"] = self._store
        drafter = create(method.drafter, **options)
        if method.warmed and self._store is not None:
            self._texts = self._texts or documents(self._store, WARM_TOKENS)[:_WARM_ANSWERS]
            for text in self._texts:
                teach(drafter, text)
        return Windowed(drafter, method.window) if method.window else drafter


def teach(drafter: Drafter, text: Seq[int]) -> None:
    """Let a drafter see a text as the output of a request that has ended."""
    seq = Sequence(list(text[:1]), SamplingParams(len(text)))
    drafter.start(seq)
    seq.append(list(text[1:]))
    drafter.stop(seq)
