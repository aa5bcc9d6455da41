"""Define and validate the options of the `token_recycling` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.drafters.shared.table_settings import LONGEST_KEY, ROWS
from paceline.drafters.token_recycling.settings import MAX_DISTRIBUTIONS, MAX_NODES
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class TokenRecyclingOptions:
    """Options of `token_recycling`, which drafts from cached distributions.

    Attributes:
        max_context_ngram: Maximum number of tokens in the context of a cached next-token
            distribution; at least 1, default 3. The paper uses 1.
        max_nodes: Maximum number of nodes in a draft tree, from 1 to 256. Defaults to 48, or to 16
            if budget=false. With budget=false, the trees of a batch have at most 48 nodes in total.
        budget: Verify only the nodes that are expected to save time; default true.
        min_path_probability: Propose nodes only if their path probability reaches this number; from
            0 to 1, default 0.001.
        max_distributions: Maximum number of cached distributions, shared by all requests. Each
            distribution needs 80 bytes.
        pool_file: File in which the cached distributions are saved between runs. If the file
            exists, the drafter loads it. By default, the distributions are not saved.
    """

    max_context_ngram: int = 3
    max_nodes: int | None = None
    budget: bool = True
    min_path_probability: float = 0.001
    max_distributions: int = ROWS
    pool_file: str | None = None

    def __post_init__(self) -> None:
        owner = "token_recycling"
        require_range(owner, "max_context_ngram", self.max_context_ngram, 1, LONGEST_KEY)
        require_range(owner, "min_path_probability", self.min_path_probability, 0, 1)
        require_range(owner, "max_distributions", self.max_distributions, 1, MAX_DISTRIBUTIONS)
        if self.max_nodes is not None:
            require_range(owner, "max_nodes", self.max_nodes, 1, MAX_NODES)
