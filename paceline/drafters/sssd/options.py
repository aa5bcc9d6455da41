"""Define and validate the options of the `sssd` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline import demo
from paceline.drafters.sssd.settings import CACHE_TOKENS, MAX_CACHE_TOKENS, MAX_NODES
from paceline.errors import ConfigError
from paceline.util.config import require_range

FUSIONS = ("calibrated", "paper")


@dataclass(frozen=True, slots=True)
class SssdOptions:
    """Options of `sssd`, which drafts from the request and a datastore.

    Attributes:
        datastore: Folder of a datastore; "demo" is the datastore for the built-in target. By
            default, the drafter searches only the request and earlier answers.
        fusion: Scoring of candidate tokens: "calibrated" uses a small fitted network, and "paper"
            uses the fixed weights from the paper. Defaults to "calibrated".
        max_nodes: Maximum number of nodes in a draft tree, from 1 to 512. Defaults to 48, or to 7
            if budget=false. With budget=false, the trees of a batch have at most 24 nodes in total.
        budget: Verify only the nodes that are expected to save time; default true.
        answer_cache_tokens: Maximum number of tokens from recent answers to cache and search; from
            0 (disabled) to 1048576. Unfinished answers are included. Defaults to 262144, or to 0 if
            fusion=paper or update_datastore=true.
        last_logits: Also propose the runner-up tokens in the target's last logits. Runner-up tokens
            are often correct one position later (LogitSpec). Requires `fusion=calibrated`; default
            false.
        update_datastore: Append finished answers to the datastore; default false. If the datastore
            does not exist, the drafter creates an empty one.
    """

    datastore: str | None = None
    fusion: str = "calibrated"
    max_nodes: int | None = None
    budget: bool = True
    answer_cache_tokens: int | None = None
    update_datastore: bool = False
    last_logits: bool = False

    def __post_init__(self) -> None:
        tokens = self.answer_cache_tokens
        if self.max_nodes is not None:
            require_range("sssd", "max_nodes", self.max_nodes, 1, MAX_NODES)
        if tokens is not None:
            require_range("sssd", "answer_cache_tokens", tokens, 0, MAX_CACHE_TOKENS)
        if self.fusion not in FUSIONS:
            raise ConfigError(
                f"sssd: got fusion={self.fusion!r}; expected one of {', '.join(FUSIONS)}."
            )
        if self.last_logits and self.fusion != "calibrated":
            raise ConfigError(
                f"sssd: got last_logits=true with fusion={self.fusion}, which scores only matches."
                " Leave one of the two out."
            )
        if self.update_datastore and tokens is not None:
            raise ConfigError(
                f"sssd: got update_datastore=true and answer_cache_tokens={tokens}. The datastore"
                " caches answers under its own limits. Leave one of the two out."
            )
        if self.update_datastore and self.datastore is None:
            raise ConfigError(
                "sssd: got update_datastore=true without a datastore. Add datastore=PATH."
            )
        if self.update_datastore and self.datastore == demo.NAME:
            raise ConfigError(
                f"sssd: got update_datastore=true, but datastore={demo.NAME} is part of the package"
                " and only read. Build your own (paceline datastore build) and pass its folder."
            )

    @property
    def memory_tokens(self) -> int:
        """Maximum number of answer tokens that are cached in memory; 0 disables the cache."""
        if self.answer_cache_tokens is not None:
            return self.answer_cache_tokens
        return 0 if self.update_datastore or self.fusion == "paper" else CACHE_TOKENS
