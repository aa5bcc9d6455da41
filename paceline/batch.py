"""A running batch: sequences wait, get a slot, step together, and leave at different times."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from paceline.drafter import Drafter, Outcome
from paceline.metrics import Stats, Timing
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.step import Verifier, decode_step
from paceline.verify import verify as verify_batch


class Batch:
    """Steps up to `max_batch` sequences; a place that falls free is taken by the next waiting one.

    Prompts go first: while any sequence has no token yet, a step prefills (with the drafts riding on the last chunk), so
    that prompts are not padded to the width of decoding rows.
    """

    def __init__(
        self, model: CachedLM, drafter: Drafter, max_batch: int, max_nodes: int, verify: Verifier = verify_batch
    ) -> None:
        self._model = model
        self._drafter = drafter
        self._max_batch = max_batch
        self._max_nodes = max_nodes
        self._verify = verify
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        self._since: dict[int, float] = {}
        self._step_seconds = 0.0

    def add(self, seqs: Iterable[Sequence]) -> None:
        """Queue sequences."""
        self._waiting.extend(seqs)

    @property
    def unfinished(self) -> bool:
        """Whether a step is left to do."""
        return bool(self._waiting or self._active)

    def step(self) -> list[Outcome]:
        """One decode step of one group; sequences that end give their place back."""
        start = time.perf_counter()
        self._admit(start)
        group = self._group()
        outcomes = decode_step(self._model, self._drafter, group, [self._max_nodes] * len(group), self._verify)
        for outcome in outcomes:
            if outcome.seq.finish_reason is not None:
                self._retire(outcome.seq)
        self._step_seconds += time.perf_counter() - start
        return outcomes

    def abort(self) -> None:
        """Drop every sequence, waiting or active, and free what they hold."""
        self._waiting.clear()
        for seq in list(self._active):
            self._retire(seq)

    def stats(self, seq: Sequence) -> Stats:
        """Counts of a sequence that has been admitted, its time up to now."""
        return Stats.of(seq, time.perf_counter() - self._since[seq.id])

    def timing(self) -> Timing:
        """Where the time went so far."""
        return Timing(self._step_seconds, self._model.forward_seconds, self._drafter.forward_seconds)

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._active) < self._max_batch:
            seq = self._waiting.popleft()
            self._model.open(seq)
            self._active.append(seq)
            self._since[seq.id] = now
            self._drafter.start(seq)
        self._active.sort(key=lambda seq: seq.slot)

    def _group(self) -> list[Sequence]:
        """All decoding sequences, or, while there are prompts, the first of them that fit one forward with little padding."""
        prompts = [seq for seq in self._active if len(seq) == seq.prompt_length]
        if not prompts:
            return self._active
        group = prompts[:1]
        for seq in prompts[1:]:
            widths = [min(one.pending, self._model.prefill_chunk) for one in [*group, seq]]
            adjacent = seq.slot == group[-1].slot + 1
            if not adjacent or max(widths) * len(widths) > 1.25 * sum(widths):
                break
            group.append(seq)
        return group

    def _retire(self, seq: Sequence) -> None:
        self._active.remove(seq)
        self._drafter.stop(seq)
        self._model.close(seq)
