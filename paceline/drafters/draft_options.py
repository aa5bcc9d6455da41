"""Options of the draft-model drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import require_range
from paceline.errors import ConfigError, did_you_mean

MOST_NODES = 24  # where no length is given
_VERIFICATIONS = ("reject", "follow")
_STOP_CHAIN_BELOW = 0.1
_STOP_TREE_BELOW = 0.5
_BRANCH_ABOVE = 0.06


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Attributes:
    length: tokens drafted per step (K). Not given: as long as the draft is sure, at most 24 (in a batch of 8: 3).
    stop_below: stop drafting a sequence once the chance that one of its newest guesses is right falls below, by the draft's
        probabilities and how often such guesses came true; for a chain, the product of its top probabilities. What was drafted
        last is kept. 0 = never, the default where a length is given; else 0.5, for chains 0.1.
    branch_above: guess the draft's further choices as well wherever their chance, with all before them, is above. 1 = never,
        the default where a length is given; else 0.06. Not for draws.
    lookup: the draft model itself is sped up by prompt lookup, so that it drafts the same tokens in fewer forwards. Off where
        a length is given, else on.
    verification: "reject" (the papers' rule) or "follow" (same noise as the target); greedy is the same under both.
    """

    length: int | None = None
    stop_below: float | None = None
    branch_above: float | None = None
    lookup: bool | None = None
    verification: str = "reject"

    def __post_init__(self) -> None:
        if self.length is not None:
            require_range("draft_model", "length", self.length, 1)
        for name in ("stop_below", "branch_above"):
            if getattr(self, name) is not None:
                require_range("draft_model", name, getattr(self, name), 0, 1)
        if self.verification not in _VERIFICATIONS:
            hint = did_you_mean(self.verification, _VERIFICATIONS)
            raise ConfigError(f"draft_model: verification is {self.verification!r}.{hint}")

    @property
    def longest(self) -> int:
        """Most tokens drafted per step."""
        return MOST_NODES if self.length is None else self.length

    @property
    def chain_chance(self) -> float:
        """The chance below which a chain ends."""
        return self._stop(_STOP_CHAIN_BELOW)

    @property
    def tree_chance(self) -> float:
        """The chance below which a tree is finished."""
        return self._stop(_STOP_TREE_BELOW)

    def _stop(self, default: float) -> float:
        if self.stop_below is not None:
            return self.stop_below
        return default if self.length is None else 0.0

    @property
    def branch_chance(self) -> float:
        """The chance a further choice must have."""
        if self.branch_above is not None:
            return self.branch_above
        return _BRANCH_ABOVE if self.length is None else 1.0

    @property
    def looks_up(self) -> bool:
        """Whether drafting is sped up by prompt lookup."""
        return self.length is None if self.lookup is None else self.lookup
