"""Define and validate the options of the `pia` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class PiaOptions:
    """Options of `pia`, which drafts phrases from prompts and outputs.

    Attributes:
        max_nodes: Maximum number of nodes in a draft tree, the paper's "decoding length"; at least
            1, default 64.
        max_draft_tokens: Maximum number of tokens in a branch, the paper's "branch length"; at
            least 1, default 12. The stored phrases are two tokens longer than a branch.
        query_ngram: Number of newest tokens that are looked up; at most `max_draft_tokens` + 1,
            default 2. If these tokens do not yield a full branch, the drafter looks up fewer
            tokens.
    """

    max_nodes: int = 64
    max_draft_tokens: int = 12
    query_ngram: int = 2

    def __post_init__(self) -> None:
        require_range("pia", "max_nodes", self.max_nodes, 1)
        require_range("pia", "max_draft_tokens", self.max_draft_tokens, 1)
        require_range("pia", "query_ngram", self.query_ngram, 1, self.max_draft_tokens + 1)
