"""Define and validate the options of the `rest` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.datastore.store_settings import SORTED_TOKENS
from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class RestOptions:
    """Options of `rest`, which drafts from a datastore.

    Attributes:
        datastore: Folder of the datastore; required.
        max_ngram: Maximum length of the suffix to look up, in tokens; default 16. The drafter
            tries the longest suffix first.
        min_ngram: Minimum length of the suffix to look up, in tokens; at least 1, default 2.
        max_matches: Maximum number of matches read from each shard of the datastore; default 5000.
        max_draft_tokens: Maximum number of tokens in a continuation; at least 1, default 10. A
            continuation never extends past the end of the document that contains it.
        max_nodes: Maximum number of nodes in a draft tree; at least 1, default 64.
    """

    datastore: str | None = None
    max_ngram: int = 16
    min_ngram: int = 2
    max_matches: int = 5000
    max_draft_tokens: int = 10
    max_nodes: int = 64

    def __post_init__(self) -> None:
        if not self.datastore:
            raise ConfigError(
                "rest: no datastore was given. Build one with `paceline datastore build PATH"
                " FILE --tokenizer MODEL` and pass rest:datastore=PATH."
            )
        for name in ("min_ngram", "max_matches", "max_draft_tokens", "max_nodes"):
            require_range("rest", name, getattr(self, name), 1)
        require_range("rest", "max_ngram", self.max_ngram, self.min_ngram)
        if self.max_ngram + self.max_draft_tokens > SORTED_TOKENS:
            raise ConfigError(
                f"rest: got max_ngram={self.max_ngram} and"
                f" max_draft_tokens={self.max_draft_tokens}; expected at most {SORTED_TOKENS}"
                " together, because a datastore is sorted by that many tokens. Reduce one of them."
            )
