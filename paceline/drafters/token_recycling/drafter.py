"""Token Recycling (Luo et al. 2024): draft from cached next-token distributions.

The paper uses contexts of one token and a fixed tree of 80 nodes. Here, contexts have up to 3
tokens. The tree grows in order of path probability, using calibrated acceptance probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.drafters.shared.recycler import Recycler, RecyclingDrafter, node_rule_of
from paceline.drafters.token_recycling.options import TokenRecyclingOptions
from paceline.drafters.token_recycling.settings import MAX_NODES


class TokenRecycling(RecyclingDrafter):
    """Drafts from the target's earlier next-token distributions, cached by context.

    All requests share the cache.
    """

    name = "token_recycling"
    keeps_tokens = True
    Options = TokenRecyclingOptions

    def __init__(self, options: TokenRecyclingOptions) -> None:
        self._options = options
        self.budget = options.budget
        self.node_rule = node_rule_of(options.max_nodes, options.budget)
        self._recycler = Recycler(
            options.max_context_ngram, options.max_distributions, options.pool_file
        )

    @classmethod
    def build(cls, options: TokenRecyclingOptions) -> TokenRecycling:
        """Build the drafter from its options.

        Raises:
            ConfigError: The pool file is damaged or invalid, or its folder does not exist.
        """
        return cls(options)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft one tree per request from cached next-token distributions."""
        most = self._options.max_nodes or MAX_NODES
        limits = [min(limit, most) for limit in max_nodes]
        return self._recycler.draft(requests, limits, self._options.min_path_probability)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Cache the next-token distributions that the target computed in the step."""
        self._recycler.observe(outcomes)

    def stop(self, request: Request) -> None:
        """Free the state of a request that has ended."""
        self._recycler.stop(request)
