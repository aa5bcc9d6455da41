"""Options of the ouroboros drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range

INSPIRATIONS = ("every", "paper", "code", "off")
BAD_POOL = ("refuse", "cold")


@dataclass(frozen=True, slots=True)
class OuroborosOptions:
    """Options of `ouroboros`.

    Attributes:
        gamma: fewest tokens drafted per step; whatever the last phrase adds is kept.
        window: W, columns of the draft model's lookahead window.
        ngram: N, tokens of a phrase, its key included.
        suffixes: K, most phrases verified behind the draft, and as many behind the newest token.
        branches: most alternatives of the draft model verified beside the draft; 0 = the paper's
            tree.
        inspiration: which tokens that were not accepted teach the pool: those of "every" node, by
            the "paper"'s rule, by the public "code"'s, or "off".
        refinement: replace suffixes in the pool by what the target says in their place.
        budget: of the tree, the engine feeds what pays for its forward, and drafts are left out
            while they do not pay.
        warm: share one pool among all requests while the drafter lives.
        pool: file this pool is read from, if it is there, and saved to; includes warm.
        bad_pool: "refuse" a file that is damaged or another vocabulary's, or start "cold", with a
            warning.
    """

    gamma: int = 5
    window: int = 2
    ngram: int = 6
    suffixes: int = 3
    branches: int = 4
    inspiration: str = "every"
    refinement: bool = True
    budget: bool = True
    warm: bool = False
    pool: str | None = None
    bad_pool: str = "refuse"

    def __post_init__(self) -> None:
        for name, least in (
            ("gamma", 1),
            ("window", 1),
            ("ngram", 2),
            ("suffixes", 0),
            ("branches", 0),
        ):
            require_range("ouroboros", name, getattr(self, name), least)
        for name, allowed in (("inspiration", INSPIRATIONS), ("bad_pool", BAD_POOL)):
            if getattr(self, name) not in allowed:
                value = getattr(self, name)
                raise ConfigError(
                    f"ouroboros: got {name}={value!r}; expected a known"
                    f" value.{did_you_mean(value, allowed)}"
                )
