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
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.drafters.shared.draft_sources import DraftSource, flatten_sources
from paceline.drafters.shared.merged_tree import grow, learn
from paceline.drafters.shared.recycled import TOP, new_table, remember
from paceline.drafters.shared.recycled_file import SuccessorTableFile
from paceline.drafters.shared.settings import RecyclingSettings
from paceline.drafters.shared.source_calibration import new_source_calibration
from paceline.drafters.shared.table_settings import LONGEST_KEY, ROWS
from paceline.drafters.shared.tree_candidate import CANDIDATE, TreeInputs, TreeQuery
from paceline.errors import ConfigError

_SETTINGS = RecyclingSettings()
_NO_TREES: Mapping[DraftSource, DraftTree] = {}


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
        # By request id: its newest tree, and the size of the tree.
        self._trees: dict[int, tuple[NDArray[np.void], int]] = {}

    def draft(
        self,
        request: Request,
        max_nodes: int,
        min_path_probability: float,
        trees: Mapping[DraftSource, DraftTree] = _NO_TREES,
    ) -> DraftTree:
        """Return a tree of up to `max_nodes` nodes, the likeliest first.

        Args:
            request: Request to draft for.
            max_nodes: Maximum number of nodes.
            min_path_probability: Minimum path probability of a node; from 0 to 1.
            trees: Trees of further sources for the same request, with confidences.
        """
        max_depth = request.remaining - 1
        if max_nodes <= 0 or max_depth <= 0:
            self._trees.pop(request.id, None)
            return EMPTY_TREE
        tree: NDArray[np.void] = np.empty(max_nodes, dtype=CANDIDATE)
        query = TreeQuery(
            _array(request.token_ids[-LONGEST_KEY:]),
            self._max_context,
            request.params.temperature,
            max_depth,
            min_path_probability,
        )
        size = grow(TreeInputs(self.table, self.calibration, flatten_sources(trees), query), tree)
        self._trees[request.id] = tree, size
        return as_draft(tree, size)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Cache the target's distributions, and calibrate with the outcomes."""
        if self.pool_file is not None:
            self.pool_file.changed = True
        for outcome in outcomes:
            request, tree, top = outcome.request, outcome.tree, outcome.target_top
            assert top is not None, "a drafter with top_k gets them"
            before = len(request.token_ids) - len(outcome.new_token_ids)
            newest = _array(request.token_ids[max(0, before - LONGEST_KEY) : before])
            remember(
                self.table,
                newest,
                self._max_context,
                _array(tree.token_ids),
                _array(tree.parents),
                top.token_ids,
                top.probs,
            )
            known = self._trees.get(request.id)
            if known is not None:
                learn(self.calibration, *known, _array(outcome.new_token_ids))

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


def as_draft(tree: NDArray[np.void], size: int) -> DraftTree:
    """Return the first `size` candidates of a tree as a draft tree."""
    if size == 0:
        return EMPTY_TREE
    taken = tree[:size]
    return DraftTree(
        taken["token"].tolist(),
        taken["parent"].tolist(),
        None,
        taken["confidence"].tolist(),
        origins=taken["origin"].tolist(),
    )


def _array(numbers: Any) -> IntArray:
    return np.array(numbers, dtype=np.int64)
