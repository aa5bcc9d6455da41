"""Share one cache of the target's distributions among drafters of Token Recycling."""

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
from paceline.core.tree import DraftTree, IntArray
from paceline.drafters.shared.array_trees import ArrayTrees
from paceline.drafters.shared.draft_sources import DraftSource, join_sources
from paceline.drafters.shared.merged_tree import grow_trees, learn
from paceline.drafters.shared.recycled import TOP, VerifiedTrees, new_table, remember
from paceline.drafters.shared.recycled_file import SuccessorTableFile
from paceline.drafters.shared.settings import RecyclingSettings
from paceline.drafters.shared.source_calibration import new_source_calibration
from paceline.drafters.shared.table_settings import LONGEST_KEY, ROWS
from paceline.drafters.shared.tree_candidate import CANDIDATE, TreeQueries
from paceline.errors import ConfigError

_SETTINGS = RecyclingSettings()
_NO_TREES: Mapping[DraftSource, ArrayTrees] = {}


def node_rule_of(max_nodes: int | None, budget: bool) -> NodeRule:
    """Return the node rule for the option `max_nodes`."""
    if max_nodes is not None:
        return NodeRule(max_nodes)
    return (
        WITH_BUDGET
        if budget
        else NodeRule(_SETTINGS.max_nodes, batch_nodes=_SETTINGS.max_batch_nodes)
    )


class Recycler:
    """Cache the target's distributions, and draft from them.

    Args:
        max_context: Maximum number of tokens in a context.
        rows: Number of cached distributions.
        pool_path: File that cache and calibration are loaded from, if it exists, and saved to:
            while no request is open, and at exit.
    Attributes:
        table: Cached distributions.
        calibration: Acceptance rates by source.
        pool_file: File of both; None without one.
    Raises:
        ConfigError: The file exists and cannot be used.
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
        """Return a tree for each request, with the likeliest nodes first.

        Args:
            requests: Requests to draft for.
            max_nodes: Maximum number of nodes for each request.
            min_path_probability: Minimum path probability of a node; from 0 to 1.
            trees: Trees of further sources for the same requests, with confidences.
        """
        if not requests:
            return []
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
        """Cache the target's distributions, and calibrate with the outcomes."""
        if self.pool_file is not None:
            self.pool_file.changed = True
        if outcomes:
            self._remember(outcomes)
            drafted = [each for each in outcomes if each.request.id in self._trees]
            arrays = {id(self._trees[each.request.id][0]) for each in drafted}
            if len(arrays) == 1:  # else the newest trees come from several calls of `draft`
                self._learn(drafted)
            else:
                for each in drafted:
                    self._learn([each])

    def _remember(self, outcomes: Sequence[Outcome]) -> None:
        """Cache the target's distributions after every node."""
        newest: list[int] = []
        newest_ends: list[int] = []
        drafted: list[int] = []
        parents: list[int] = []
        ends: list[int] = []
        token_ids: list[IntArray] = []
        probs: list[NDArray[np.float32]] = []
        for outcome in outcomes:
            request, tree, top = outcome.request, outcome.tree, outcome.target_top
            assert top is not None, "a drafter with top_k gets them"
            before = len(request.token_ids) - len(outcome.new_token_ids)
            newest += request.token_ids[max(0, before - LONGEST_KEY) : before]
            newest_ends.append(len(newest))
            drafted += tree.token_ids
            parents += tree.parents
            ends.append(len(drafted))
            token_ids.append(top.token_ids)
            probs.append(top.probs)
        verified = VerifiedTrees(*map(_array, (newest, newest_ends, drafted, parents, ends)))
        remember(
            self.table,
            self._max_context,
            verified,
            np.concatenate(token_ids),
            np.concatenate(probs),
        )

    def _learn(self, outcomes: Sequence[Outcome]) -> None:
        """Calibrate with outcomes of requests whose newest trees share one array."""
        bounds: list[int] = []
        new_tokens: list[int] = []
        ends: list[int] = []
        for outcome in outcomes:
            trees, begin, end = self._trees[outcome.request.id]
            bounds += begin, end
            new_tokens += outcome.new_token_ids
            ends.append(len(new_tokens))
        learn(self.calibration, trees, _array(bounds), _array(new_tokens), _array(ends))

    def stop(self, request: Request) -> None:
        """Free the state of a request; save the file once no request is open."""
        self._trees.pop(request.id, None)
        if self.pool_file is not None and not self._trees:
            self.pool_file.save_changes(wait=True)


class RecyclingDrafter(Drafter):
    """Provide the cache and its file to drafters."""

    top_k = TOP
    _recycler: Recycler

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Reject a pool file with a different vocabulary."""
        if self._recycler.pool_file is not None:
            self._recycler.pool_file.check_vocabulary(vocab_size, tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Reject a pool file that was made with a different tokenizer."""
        if self._recycler.pool_file is not None:
            self._recycler.pool_file.check_tokenizer(tokenizer)

    def save_pool(self) -> None:
        """Write the pool file now.

        Raises:
            ConfigError: No file was given, it cannot be written, or no engine has used the drafter.
        """
        if self._recycler.pool_file is None:
            raise ConfigError(
                f"{self.name}: got no file to save the pool to; expected the option pool_file."
                " Choose one with pool_file=PATH."
            )
        self._recycler.pool_file.save()


def _array(numbers: Any) -> IntArray:
    return np.array(numbers, dtype=np.int64)
