"""Isolate errors in drafters, which would otherwise stop vLLM's engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.integrations.vllm.settings import ProposerSettings
from paceline.verification.tree_rules import check_trees

_log = logging.getLogger("paceline.vllm")
_SETTINGS = ProposerSettings()


class Faults:
    """Counts and logs errors, with at most one log line every half minute.

    Args:
        count: Function to call for each error.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self._silent = 0
        self._next_line = 0.0

    def report(self, where: str, error: Exception) -> None:
        """Count an exception, and log it unless an error was logged recently."""
        self._count()
        now = time.monotonic()
        if now < self._next_line:
            self._silent += 1
            return
        more = f" ({self._silent} more since the last line)" if self._silent else ""
        _log.warning(
            "%s: %s: %s; no draft, vLLM continues.%s", where, type(error).__name__, error, more
        )
        self._silent, self._next_line = 0, now + _SETTINGS.log_seconds


class GuardedDrafter:
    """Wraps a drafter, and disables it for requests in which it raises an error.

    Args:
        drafter: Drafter to wrap.
        vocab_size: Vocabulary size; draft token ids must be below it.
        faults: Log of errors.
    """

    def __init__(self, drafter: Drafter, vocab_size: int, faults: Faults) -> None:
        self.drafter = drafter
        self._vocab_size, self._faults = vocab_size, faults
        self._muted: set[int] = set()

    def start(self, seq: Request) -> None:
        """Notify the drafter that a request has started."""
        try:
            self.drafter.start(seq)
        except Exception as error:
            self._mute(seq, error)

    def propose(self, seqs: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return a draft tree for each request; trees of failed requests are empty.

        If the drafter fails for the batch, this method calls it again for one request at a time.
        """
        trees = [EMPTY_TREE] * len(seqs)
        indices = [index for index, seq in enumerate(seqs) if seq.id not in self._muted]
        if indices:
            proposed = self._propose_checked(
                [seqs[index] for index in indices], [max_nodes[index] for index in indices]
            )
            for index, tree in zip(indices, proposed, strict=True):
                trees[index] = tree
        return trees

    def observe(self, outcome: Outcome) -> None:
        """Notify the drafter of the outcome of a step."""
        if outcome.request.id not in self._muted:
            try:
                self.drafter.observe([outcome])
            except Exception as error:
                self._mute(outcome.request, error)

    def stop(self, seq: Request) -> None:
        """Notify the drafter that a request has finished."""
        if seq.id in self._muted:
            self._muted.discard(seq.id)
        else:
            self._stop(seq)

    def _propose_checked(self, seqs: list[Request], max_nodes: list[int]) -> list[DraftTree]:
        try:
            trees = self.drafter.propose(seqs, max_nodes)
            check_trees(self.drafter, seqs, max_nodes, trees, self._vocab_size)
            return trees
        except Exception as error:
            if len(seqs) == 1:
                self._mute(seqs[0], error)
                return [EMPTY_TREE]
        return [
            tree
            for seq, limit in zip(seqs, max_nodes, strict=True)
            for tree in self._propose_checked([seq], [limit])
        ]

    def _mute(self, seq: Request, error: Exception) -> None:
        self._report(error)
        self._stop(seq)
        self._muted.add(seq.id)

    def _stop(self, seq: Request) -> None:
        try:
            self.drafter.stop(seq)
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._faults.report(f"drafter {self.drafter.name!r}", error)
