"""Options of the specdec_pp drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.drafters.shared.verification import require_verification
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SpecDecPPOptions:
    """Options of `specdec_pp`.

    Attributes:
        head: folder of the acceptance head. Not given: the head of the embedded draft model.
        threshold: stop drafting once a rejection is likelier than this, between 0 and 1; "auto"
            chooses the fastest by the head's card and measured times. Not given: "auto" if the card
            has a curve, else 0.7.
        min: fewest tokens drafted per step.
        max: most tokens drafted per step.
        newest: count the newest token too, by the distribution it was drawn from.
        lookup: speed up the draft model itself by prompt lookup.
        budget: of a draft, the engine feeds what pays for its forward, by the head's confidences,
            and drafts are left out while they do not pay; never of draws, which the text depends
            on.
        seconds: with the budget, guesses have the draft's second choice beside each token, for the
            case that it is rejected.
        verification: "reject" (the papers' rule) or "follow" (same noise as the target). Greedy is
            the same under both.
    """

    head: str | None = None
    threshold: float | str | None = None
    min: int = 2
    max: int = 20
    newest: bool = True
    lookup: bool = False
    budget: bool = True
    seconds: bool = True
    verification: str = "reject"

    def __post_init__(self) -> None:
        if isinstance(self.threshold, str) and self.threshold != AUTO:
            hint = did_you_mean(self.threshold, [AUTO])
            raise ConfigError(
                f"specdec_pp: got threshold={self.threshold!r}; expected a number between 0 and"
                f" 1.{hint}"
            )
        if isinstance(self.threshold, float) and not 0.0 < self.threshold < 1.0:
            raise ConfigError(
                f"specdec_pp: got threshold={self.threshold}; expected a number above 0 and below"
                f" 1, or {AUTO!r}. A higher one"
                " makes longer drafts."
            )
        require_range("specdec_pp", "min", self.min, 1)
        require_range("specdec_pp", "max", self.max, self.min)
        require_verification("specdec_pp", self.verification)
