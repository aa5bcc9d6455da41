"""Draft from a cache of the target's next-token distributions (Token Recycling)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_rule import NodeRule
from paceline.core.request import Request
from paceline.core.settings import WITH_BUDGET
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.drafters.shared.array_trees import ArrayTrees
from paceline.drafters.shared.draft_sources import DraftSource, join_sources
from paceline.drafters.shared.merged_tree import grow_trees
from paceline.drafters.shared.recycled import TOP, new_table
from paceline.drafters.shared.recycled_file import SuccessorTableFile
from paceline.drafters.shared.settings import RecyclingSettings
from paceline.drafters.shared.source_calibration import new_source_calibration
from paceline.drafters.shared.step_learning import learn_step, record_of
from paceline.drafters.shared.table_settings import LONGEST_KEY, ROWS
from paceline.drafters.shared.tree_candidate import CANDIDATE, TreeQueries
from paceline.errors import ConfigError

_SETTINGS = RecyclingSettings()
_NO_TREES: Mapping[DraftSource, ArrayTrees] = {}
_NO_TREE: tuple[NDArray[np.void], int, int] = (np.empty(0, dtype=CANDIDATE), 0, 0)


def node_rule_of(max_nodes: int | None, budget: bool) -> NodeRule:
    """Return a drafter's node limits, given its options `max_nodes` and `budget`."""
    if max_nodes is not None:
        return NodeRule(max_nodes)
    return (
        WITH_BUDGET
        if budget
        else NodeRule(_SETTINGS.max_nodes, batch_nodes=_SETTINGS.max_batch_nodes)
    )


class Recycler:
    """Caches the target's next-token distributions by context, and drafts from them.

    Args:
        max_context: Maximum number of tokens in a context. A distribution is cached under the
            tokens that precede it.
        rows: Maximum number of cached distributions.
        pool_path: File for the cache and the calibration. An existing file is loaded at the start.
            The file is saved when no request is open, and at exit. None disables the file.
    Attributes:
        table: Cached distributions.
        calibration: Measured acceptance rates by source.
        pool_file: File at `pool_path`; None if `pool_path` is None.
    Raises:
        ConfigError: The file is damaged or invalid, or its folder does not exist.
    """

    def __init__(self, max_context: int, rows: int = ROWS, pool_path: str | None = None) -> None:
        self.table = new_table(rows)
        self.calibration = new_source_calibration()
        self.pool_file = (
            None
            if pool_path is None
            else SuccessorTableFile(pool_path, self.table, self.calibration)
        )
        if self.pool_file is not None:
            weakref.finalize(self, self.pool_file.save_changes)
        self._max_context = max_context
        # By request id: the array of its newest tree, and the tree's first node and end.
        self._trees: dict[int, tuple[NDArray[np.void], int, int]] = {}

    def draft(
        self,
        requests: Sequence[Request],
        max_nodes: Sequence[int],
        min_path_probability: float,
        trees: Mapping[DraftSource, ArrayTrees] = _NO_TREES,
    ) -> list[DraftTree]:
        """Return a tree for each request, with the most likely nodes first.

        Args:
            requests: Requests to draft for.
            max_nodes: Maximum number of nodes for each request.
            min_path_probability: Lowest path probability of proposed nodes; from 0 to 1.
            trees: Trees of other sources for the same requests, with confidences.
        """
        if not any(max_nodes):
            self._trees.update((request.id, _NO_TREE) for request in requests)
            return [EMPTY_TREE] * len(requests)
        newest: list[int] = []
        limits: list[int] = []
        for request, limit in zip(requests, max_nodes, strict=True):
            tail = request.token_ids[-LONGEST_KEY:]
            known = len(tail)
            newest += tail if known == LONGEST_KEY else [0] * (LONGEST_KEY - known) + tail
            limits += (known, limit, request.remaining - 1)
        queries = TreeQueries(
            _array(newest).reshape(-1, LONGEST_KEY),
            _array(limits).reshape(-1, 3),
            np.array([request.params.temperature for request in requests], dtype=np.float64),
            self._max_context,
            min_path_probability,
        )
        grown: Any = np.empty(sum(max_nodes), dtype=CANDIDATE)
        ends = np.empty(len(requests), dtype=np.int64)
        sources = join_sources(trees, len(requests))
        grow_trees(self.table, self.calibration, sources, queries, grown, ends)
        bounds = [0, *ends.tolist()]
        for request, begin, end in zip(requests, bounds, bounds[1:], strict=False):
            self._trees[request.id] = grown, begin, end
        return ArrayTrees(grown[: bounds[-1]], bounds[:-1], bounds[1:]).draft_trees()

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Cache the target's distributions, and update the calibration with the outcomes."""
        if self.pool_file is not None:
            self.pool_file.changed = True
        pending: list[Outcome] = []
        for outcome in outcomes:
            if outcome.target_top is None:
                continue  # no top tokens are reported while drafting pauses
            array = self._newest_tree(outcome)[0]
            if pending and array is not self._newest_tree(pending[0])[0]:
                self._learn(pending)  # these trees come from a different call of `draft`
                pending = []
            pending.append(outcome)
        if pending:
            self._learn(pending)

    def _newest_tree(self, outcome: Outcome) -> tuple[NDArray[np.void], int, int]:
        return self._trees.get(outcome.request.id, _NO_TREE)

    def _learn(self, outcomes: Sequence[Outcome]) -> None:
        """Update the cache and the calibration with outcomes from one call of `draft`."""
        records: list[int] = []
        token_ids: list[IntArray] = []
        probs: list[NDArray[np.float32]] = []
        for outcome in outcomes:
            request, top, new_tokens = outcome.request, outcome.target_top, outcome.new_token_ids
            assert top is not None, "checked by the caller"
            before = len(request.token_ids) - len(new_tokens)
            newest = request.token_ids[max(0, before - LONGEST_KEY) : before]
            candidates, begin, end = self._newest_tree(outcome)
            records += record_of(newest, outcome.tree, new_tokens, begin, end)
            token_ids.append(top.token_ids)
            probs.append(top.probs)
        learn_step(
            self.table,
            self.calibration,
            self._max_context,
            _array(records),
            candidates,
            np.concatenate(token_ids),
            np.concatenate(probs),
        )

    def stop(self, request: Request) -> None:
        """Free the state of a request, and save the file if no other request is open."""
        self._trees.pop(request.id, None)
        if self.pool_file is not None and not self._trees:
            self.pool_file.save_changes(wait=True)


class RecyclingDrafter(Drafter):
    """Base class of drafters that draft from the target's cached distributions.

    If the option `pool_file` is set, the distributions are saved to that file.
    """

    top_k = TOP
    learns_at_rest = False
    _recycler: Recycler

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Reject a `pool_file` that was recorded with a different vocabulary."""
        if self._recycler.pool_file is not None:
            self._recycler.pool_file.check_vocabulary(vocab_size, tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Reject a `pool_file` that was recorded with a different tokenizer."""
        if self._recycler.pool_file is not None:
            self._recycler.pool_file.check_tokenizer(tokenizer)

    def save_pool(self) -> None:
        """Write the cached distributions to `pool_file` immediately.

        Raises:
            ConfigError: No file was given, the file cannot be written, or no engine has used the
                drafter.
        """
        if self._recycler.pool_file is None:
            raise ConfigError(
                f"{self.name}: got no file to save the pool to; expected the option pool_file."
                " Choose one with pool_file=PATH."
            )
        self._recycler.pool_file.save()


def _array(numbers: Any) -> IntArray:
    return np.array(numbers, dtype=np.int64)
