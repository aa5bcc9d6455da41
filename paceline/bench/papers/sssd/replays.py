"""Accepted tokens against the size of the tree, on recorded answers (Marzollo et al. 2024,
figure 4, section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.sssd.result import BOTH, REQUEST, SIZES, STORE, WINDOW, Study, published
from paceline.core.drafter import Drafter
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import DraftTree
from paceline.datastore.layout import place_of, read_manifest
from paceline.datastore.shard import read_text
from paceline.drafters import create
from paceline.replay.report import ReplayRow
from paceline.replay.run import Trace, replay

_ORDER = (16, 4, 64, 8, 32, 2, 48, 24, 12)  # in which sizes are replayed, as far as time allows
_QUERY = 4  # newest tokens that the paper's fusion looks up
_WARM_ANSWERS = 10_000  # that `pia` learns beforehand, as in the paper
WARM_TOKENS = 50_000  # and no more than this, as every size begins anew


@dataclass(frozen=True, slots=True)
class ReplayMethod:
    """A drafter of figure 4.

    Attributes:
        options: of the drafter. stored: it reads the datastore. warmed: it learns the store's
            documents beforehand.
        window: newest tokens that it is shown; 0 = all.
    """

    name: str
    drafter: str
    options: tuple[tuple[str, Any], ...] = ()
    stored: bool = False
    warmed: bool = False
    window: int = 0


REST, PIA = "rest", "pia"
_WIDE = (("max_nodes", max(SIZES)), ("answer_cache_tokens", 0))
_PAPER = (*_WIDE, ("fusion", "paper"))
METHODS = (
    ReplayMethod(BOTH, "sssd", _WIDE, stored=True),
    ReplayMethod(REQUEST, "sssd", _WIDE),
    ReplayMethod(published(BOTH), "sssd", _PAPER, stored=True),
    ReplayMethod(published(REQUEST), "sssd", _PAPER),
    ReplayMethod(published(STORE), "sssd", _PAPER, stored=True, window=_QUERY),
    ReplayMethod(published(WINDOW), "sssd", _PAPER, window=_QUERY),
    ReplayMethod(REST, "rest", stored=True),
    ReplayMethod(PIA, "pia", warmed=True),
)


class Windowed(Drafter):
    """A drafter that is shown the newest tokens of a request only, at each step as those of a new
    one.

    So a drafter of request and datastore says what the datastore says, and next to nothing of the
    request.
    """

    name = "windowed"

    def __init__(self, inner: Drafter, window: int) -> None:
        self._inner, self._window = inner, window

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return what the inner drafter proposes."""
        shown = [
            Request(request.token_ids[-self._window :], SamplingParams(request.remaining))
            for request in requests
        ]
        for request in shown:
            self._inner.start(request)
        trees = self._inner.propose(shown, max_nodes)
        for request in shown:
            self._inner.stop(request)
        return trees


def replay_all(
    traces: Mapping[str, Sequence[Trace]],
    store: str | None,
    methods: Sequence[str] = (),
    *,
    sizes: Sequence[int] = _ORDER,
    left: float = 0.0,
    progress: bool = True,
) -> Study:
    """Run answers through every method at every size, a whole size at a time. Ctrl-C keeps the
    sizes that are done.

    Args:
        traces: answers by set. store: folder of the datastore; None = without the methods that read
            it.
        methods: names of those in `METHODS` that are replayed; none = all.
        left: seconds that may be used, compiling aside; 0 = no limit. One size is always replayed.
    """
    rows, complete = list[ReplayRow](), True
    sources = _Sources(store)
    asked = [method for method in METHODS if not methods or method.name in methods]
    used = [method for method in asked if store is not None or not method.stored]
    try:
        for method in used:
            if not method.warmed:  # which is plain Python
                replay(
                    sources.drafter(method), next(iter(traces.values()))[:1], 1
                )  # compiles, once for each machine
        for size in TimeLimit(left).within(sizes, "replays", progress):
            found = []
            for method in used:
                drafter = sources.drafter(method)
                found += [
                    ReplayRow(method.name, name, replay(drafter, some, size - 1))
                    for name, some in traces.items()
                ]
            rows += found
    except KeyboardInterrupt:
        complete = False
    tokens = {name: sum(len(output) for _, output in some) for name, some in traces.items()}
    return Study(complete, {name: len(some) for name, some in traces.items()}, tokens, tuple(rows))


class _Sources:
    """Builds drafters on one store."""

    def __init__(self, store: str | None) -> None:
        self._store, self._texts = store, list[list[int]]()

    def drafter(self, method: ReplayMethod) -> Drafter:
        """Return a new one; `pia` has learned some of the store's documents."""
        options = dict(method.options)
        if method.stored:
            options["datastore"] = self._store
        drafter = create(method.drafter, **options)
        if method.warmed and self._store is not None:
            self._texts = self._texts or documents(self._store, WARM_TOKENS)[:_WARM_ANSWERS]
            for text in self._texts:
                teach(drafter, text)
        return Windowed(drafter, method.window) if method.window else drafter


def teach(drafter: Drafter, text: Sequence[int]) -> None:
    """Let a drafter see a text as the output of a request that has ended."""
    request = Request(list(text[:1]), SamplingParams(len(text)))
    drafter.start(request)
    request.append(list(text[1:]))
    drafter.stop(request)


def documents(store: str, most: int) -> list[list[int]]:
    """Return documents of a store (a folder, or "demo"), evenly spread, with about `most` tokens in
    all.

    Raises:
        DatastoreError: no store, or a damaged shard.
    """
    path = place_of(store)
    manifest = read_manifest(path)
    step = max(1.0, sum(info.tokens for info in manifest.shards) / most)
    texts: list[list[int]] = []
    for info in manifest.shards:
        text = read_text(path, info, manifest.vocab_size, manifest.width)
        ends = np.flatnonzero(text == info.separator)
        starts = np.concatenate([[0], ends[:-1] + 1])
        chosen = np.arange(0, len(ends), step).astype(np.int64)
        texts += [
            text[start:end].tolist()
            for start, end in zip(starts[chosen], ends[chosen], strict=True)
        ]
    return texts
