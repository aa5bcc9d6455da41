"""Share one cache of the target's distributions among drafters of Token Recycling."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_rule import WITH_BUDGET, NodeRule
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.drafters.shared.merged_tree import GUESS, Drafted, grow, learn
from paceline.drafters.shared.recycled import TOP, new_table, remember
from paceline.drafters.shared.recycled_file import SuccessorTableFile
from paceline.drafters.shared.source_calibration import new_source_calibration
from paceline.drafters.shared.table_settings import LONGEST_KEY, ROWS
from paceline.errors import ConfigError

_NODES, _BATCH_NODES = 16, 48  # without a budget: of a tree, and of a batch
_NOTHING_DRAFTED = Drafted(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0, np.int8)
)


def node_rule_of(nodes: int | None, budget: bool) -> NodeRule:
    """Return the node rule for the option `max_nodes`."""
    if nodes is not None:
        return NodeRule(nodes)
    return WITH_BUDGET if budget else NodeRule(_NODES, batch=_BATCH_NODES)


class Recycler:
    """Cache the target's distributions, and draft from them.

    Args:
        keys: Maximum number of tokens in a context.
        rows: Number of cached distributions.
        pool: File that cache and calibration are loaded from, if it exists, and saved to: while no
            request is open, and at exit.
    Attributes:
        kept: That file; None without one.
    Raises:
        ConfigError: The file exists and cannot be used.
    """

    def __init__(self, keys: int, rows: int = ROWS, pool: str | None = None) -> None:
        self.table = new_table(rows)
        self.chances = new_source_calibration()
        self.kept = None if pool is None else SuccessorTableFile(pool, self.table, self.chances)
        if self.kept is not None:
            weakref.finalize(self, self.kept.save_changes)
        self._keys = keys
        self._trees: dict[
            int, tuple[NDArray[np.void], int]
        ] = {}  # sequence -> its newest tree, and that one's size

    def draft(
        self,
        request: Request,
        nodes: int,
        least: float,
        beside: DraftTree = EMPTY_TREE,
        head_draft: DraftTree = EMPTY_TREE,
        modelled: DraftTree = EMPTY_TREE,
    ) -> DraftTree:
        """Return a tree of up to `nodes` nodes, the likeliest first.

        Args:
            request: Request to draft for.
            nodes: Maximum number of nodes.
            least: Minimum path probability.
            beside: Another drafter's tree of the same request, with confidences.
            head_draft: Tokens of the draft head.
            modelled: A draft model's tree.
        """
        levels = request.remaining - 1
        if nodes <= 0 or levels <= 0:
            self._trees.pop(request.id, None)
            return EMPTY_TREE
        tree: NDArray[np.void] = np.empty(nodes, dtype=GUESS)
        newest = _array(request.token_ids[-LONGEST_KEY:])
        size = grow(
            self.table,
            self.chances,
            _drafted(beside),
            _drafted(head_draft),
            _drafted(modelled),
            newest,
            self._keys,
            request.params.temperature,
            levels,
            least,
            tree,
        )
        self._trees[request.id] = tree, size
        return as_draft(tree, size)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Cache the target's distributions, and calibrate with the outcomes."""
        if self.kept is not None:
            self.kept.changed = True
        for outcome in outcomes:
            request, tree, top = outcome.request, outcome.tree, outcome.target_top
            assert top is not None, "a drafter with top_k gets them"
            before = len(request.token_ids) - len(outcome.new_token_ids)
            newest = _array(request.token_ids[max(0, before - LONGEST_KEY) : before])
            remember(
                self.table,
                newest,
                self._keys,
                _array(tree.token_ids),
                _array(tree.parents),
                top.token_ids,
                top.probs,
            )
            known = self._trees.get(request.id)
            if known is not None:
                learn(self.chances, *known, _array(outcome.new_token_ids))

    def stop(self, request: Request) -> None:
        """Free the state of a request; save the file once no request is open."""
        self._trees.pop(request.id, None)
        if self.kept is not None and not self._trees:
            self.kept.save_changes(wait=True)


class RecyclingDrafter(Drafter):
    """Provide the cache and its file to drafters."""

    top_k = TOP
    _recycler: Recycler

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Refuse a pool file of another vocabulary."""
        if self._recycler.kept is not None:
            self._recycler.kept.check_vocabulary(vocab_size, tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a pool file that was made with another tokenizer."""
        if self._recycler.kept is not None:
            self._recycler.kept.check_tokenizer(tokenizer)

    def save_pool(self) -> None:
        """Write the pool file now.

        Raises:
            ConfigError: No file was given, it cannot be written, or no engine has used the drafter.
        """
        if self._recycler.kept is None:
            raise ConfigError(
                f"{self.name}: got no file to save the pool to; expected the option pool_file."
                " Choose one with pool_file=PATH."
            )
        self._recycler.kept.save()


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


def _drafted(tree: DraftTree) -> Drafted:
    """Return another drafter's tree in the form of `grow`."""
    if not tree.token_ids:
        return _NOTHING_DRAFTED
    origins = [Origin.DRAFT] * len(tree) if tree.origins is None else tree.origins
    confidence = np.array(tree.confidence, dtype=np.float64)
    return Drafted(
        _array(tree.token_ids), _array(tree.parents), confidence, np.array(origins, dtype=np.int8)
    )


def _array(numbers: Any) -> IntArray:
    return np.array(numbers, dtype=np.int64)
