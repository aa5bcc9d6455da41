"""Replay recorded answers at several tree sizes (figure 4 and section 4.2).

The paper is Marzollo et al. 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.datastore.layout import read_manifest, store_folder
from paceline.datastore.shard import read_text
from paceline.drafters import create
from paceline.replay.report import ReplayRow
from paceline.replay.run import Trace, replay
from papers.config import TimeLimit
from papers.sssd.paper_settings import (
    QUERY_TOKENS,
    REPLAY_ORDER,
    SIZES,
    WARM_ANSWERS,
    WARM_TOKENS,
)
from papers.sssd.result import BOTH, REQUEST, STORE, WINDOW, Study, published


@dataclass(frozen=True, slots=True)
class ReplayMethod:
    """A drafter in figure 4.

    Attributes:
        name: Name of the method in reports.
        drafter: Name of the drafter.
        options: Options of the drafter.
        stored: Whether the drafter reads the datastore.
        warmed: Whether the drafter learns the documents of the datastore before the replay.
        window: Number of newest tokens that the drafter can see; 0 means all tokens.
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
    ReplayMethod(published(STORE), "sssd", _PAPER, stored=True, window=QUERY_TOKENS),
    ReplayMethod(published(WINDOW), "sssd", _PAPER, window=QUERY_TOKENS),
    ReplayMethod(REST, "rest", stored=True),
    ReplayMethod(PIA, "pia", warmed=True),
)


class Windowed(Drafter):
    """A drafter that sees only the newest tokens of each request.

    At each step, these tokens are passed to the inner drafter as a new request. If that drafter
    searches the request and a datastore, almost all its drafts then come from the datastore.
    """

    name = "windowed"

    def __init__(self, inner: Drafter, window: int) -> None:
        self._inner, self._window = inner, window

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return the inner drafter's trees for the shortened requests."""
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


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of `replay_all`.

    Attributes:
        store: Folder of the datastore; None skips the methods that use a datastore.
        methods: Names of the methods in `METHODS` to replay; if empty, all are replayed.
        sizes: Numbers of query tokens per request (s_q) to replay, in this order.
        left: Time limit in seconds, not counting compilation; 0 sets no limit.
        progress: Whether to show a progress bar.
    """

    store: str | None
    methods: Sequence[str] = ()
    sizes: Sequence[int] = REPLAY_ORDER
    left: float = 0.0
    progress: bool = True


def replay_all(traces: Mapping[str, Sequence[Trace]], options: ReplayOptions) -> Study:
    """Replay answers with every method at every size, one size at a time.

    At least one size is replayed. After Ctrl-C, the results for completed sizes are returned.

    Args:
        traces: Recorded answers by set.
        options: Methods, sizes and time limit.
    """
    rows, complete = list[ReplayRow](), True
    sources = _Sources(options.store)
    names = options.methods or [method.name for method in METHODS]
    used = [
        method
        for method in METHODS
        if method.name in names and (options.store is not None or not method.stored)
    ]
    try:
        for method in used:
            if not method.warmed:  # which is plain Python
                # compiles, once for each machine
                replay(sources.drafter(method), next(iter(traces.values()))[:1], 1)
        for size in TimeLimit(options.left).within(options.sizes, "replays", options.progress):
            size_rows = []
            for method in used:
                drafter = sources.drafter(method)
                size_rows += [
                    ReplayRow(method.name, name, replay(drafter, answers, size - 1))
                    for name, answers in traces.items()
                ]
            rows += size_rows
    except KeyboardInterrupt:
        complete = False
    tokens = {name: sum(len(output) for _, output in answers) for name, answers in traces.items()}
    return Study(
        complete, {name: len(answers) for name, answers in traces.items()}, tokens, tuple(rows)
    )


class _Sources:
    """Builds drafters that use the same datastore."""

    def __init__(self, store: str | None) -> None:
        self._store, self._texts = store, list[list[int]]()

    def drafter(self, method: ReplayMethod) -> Drafter:
        """Return a new drafter; `pia` has already learned the datastore's documents."""
        options = dict(method.options)
        if method.stored:
            options["datastore"] = self._store
        drafter = create(method.drafter, **options)
        if method.warmed and self._store is not None:
            self._texts = self._texts or documents(self._store, WARM_TOKENS)[:WARM_ANSWERS]
            for text in self._texts:
                teach(drafter, text)
        return Windowed(drafter, method.window) if method.window else drafter


def teach(drafter: Drafter, text: Sequence[int]) -> None:
    """Pass a text to a drafter as the output of a finished request."""
    request = Request(list(text[:1]), SamplingParams(len(text)))
    drafter.start(request)
    request.append(list(text[1:]))
    drafter.stop(request)


def documents(store: str, most: int) -> list[list[int]]:
    """Return documents from all over a datastore, with about `most` tokens in total.

    Args:
        store: Folder of the datastore, or "demo".
        most: Approximate total number of tokens.
    Raises:
        DatastoreError: The datastore does not exist, or a shard is damaged.
    """
    path = store_folder(store)
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
