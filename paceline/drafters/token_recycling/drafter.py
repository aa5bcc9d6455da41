"""Token Recycling (Luo et al. 2024): draft from cached next-token distributions.

`tree=paper,max_context_ngram=1` is the paper's method: the best 8 tokens after each single token,
and a fixed tree of 80 nodes. By default, contexts have up to 3 tokens, and the tree grows best
first, by calibrated acceptance probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.drafters.shared.array_trees import ArrayTrees
from paceline.drafters.shared.recycler import Recycler, RecyclingDrafter, node_rule_of
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.drafters.shared.tree_candidate import CANDIDATE
from paceline.drafters.token_recycling.options import TokenRecyclingOptions
from paceline.drafters.token_recycling.paper_tree import PARENTS, RANKS, fill
from paceline.drafters.token_recycling.settings import MAX_NODES


class TokenRecycling(RecyclingDrafter):
    """Drafts from a cache shared by all requests; lossless at any temperature."""

    name = "token_recycling"
    keeps_tokens = True
    Options = TokenRecyclingOptions

    def __init__(self, options: TokenRecyclingOptions) -> None:
        self._options = options
        self.budget = options.budget and options.tree == "best"
        fixed = len(PARENTS) if options.tree == "paper" else None
        self.node_rule = node_rule_of(options.max_nodes or fixed, options.budget)
        self._recycler = Recycler(
            options.max_context_ngram, options.max_distributions, options.pool_file
        )

    @classmethod
    def build(cls, options: TokenRecyclingOptions) -> TokenRecycling:
        """Build the drafter from its options.

        Raises:
            ConfigError: The pool file cannot be used.
        """
        return cls(options)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft one tree per request."""
        most = self._options.max_nodes or MAX_NODES
        limits = [min(limit, most) for limit in max_nodes]
        if self._options.tree == "paper":
            return list(map(self._fixed_tree, requests, limits))
        return self._recycler.draft(requests, limits, self._options.min_path_probability)

    def _fixed_tree(self, request: Request, nodes: int) -> DraftTree:
        tree = np.empty(nodes, dtype=CANDIDATE)
        newest = np.array(request.token_ids[-LONGEST_KEY:], dtype=np.int64)
        size = fill(
            self._recycler.table,
            newest,
            self._options.max_context_ngram,
            PARENTS,
            RANKS,
            request.remaining - 1,
            tree,
        )
        return ArrayTrees(tree[:size], [0], [size]).draft_trees()[0]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Cache the distributions that the target computed in the step."""
        self._recycler.observe(outcomes)

    def stop(self, request: Request) -> None:
        """Free a request's state."""
        self._recycler.stop(request)
