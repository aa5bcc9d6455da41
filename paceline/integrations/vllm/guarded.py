"""A drafter whose faults end drafting for a request, and nothing else: vLLM's engine dies of
whatever its drafter raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.verification.tree_rules import check_trees

_log = logging.getLogger("paceline.vllm")
_SECONDS = 30.0  # between two lines of the log


class Faults:
    """Counts and logs what went wrong, a line in half a minute at most.

    Args:
        count: called for each.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self._silent = 0
        self._next_line = 0.0

    def report(self, where: str, error: Exception) -> None:
        """Something was raised."""
        self._count()
        now = time.monotonic()
        if now < self._next_line:
            self._silent += 1
            return
        more = f" ({self._silent} more since the last line)" if self._silent else ""
        _log.warning(
            "%s: %s: %s; no draft, vLLM goes on.%s", where, type(error).__name__, error, more
        )
        self._silent, self._next_line = 0, now + _SECONDS


class GuardedDrafter:
    """Asks a drafter, and asks it no more for a request it has failed for.

    Args:
        vocab_size: guesses must be ids below it.
    """

    def __init__(self, drafter: Drafter, vocab_size: int, faults: Faults) -> None:
        self.drafter = drafter
        self._vocab_size, self._faults = vocab_size, faults
        self._muted: set[int] = set()

    def start(self, seq: Request) -> None:
        """A request begins."""
        try:
            self.drafter.start(seq)
        except Exception as error:
            self._mute(seq, error)

    def propose(self, seqs: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return a tree for each, an empty one where the drafter failed. A batch that fails is
        asked one by one.
        """
        trees = [EMPTY_TREE] * len(seqs)
        asked = [index for index, seq in enumerate(seqs) if seq.id not in self._muted]
        if asked:
            found = self._asked(
                [seqs[index] for index in asked], [max_nodes[index] for index in asked]
            )
            for index, tree in zip(asked, found, strict=True):
                trees[index] = tree
        return trees

    def observe(self, outcome: Outcome) -> None:
        """A request has got tokens."""
        if outcome.request.id not in self._muted:
            try:
                self.drafter.observe([outcome])
            except Exception as error:
                self._mute(outcome.request, error)

    def stop(self, seq: Request) -> None:
        """A request has ended."""
        if seq.id in self._muted:
            self._muted.discard(seq.id)
        else:
            self._stop(seq)

    def _asked(self, seqs: list[Request], max_nodes: list[int]) -> list[DraftTree]:
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
            for tree in self._asked([seq], [limit])
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
