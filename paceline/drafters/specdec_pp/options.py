"""Define and validate the options of the `specdec_pp` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.drafters.shared.verification import require_verification
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SpecDecPPOptions:
    """Options of `specdec_pp`, which drafts until a head expects a rejection.

    Attributes:
        head: Folder of the acceptance head. Defaults to the head for the built-in draft model.
        threshold: Drafting stops once the probability of a rejection exceeds this threshold; above
            0 and below 1. "auto" selects the threshold that is expected to be fastest, based on
            measured times and on the threshold costs that `paceline head calibrate` stores with the
            head. Defaults to "auto" after `paceline head calibrate`, otherwise to 0.7.
        min_draft_tokens: Minimum number of tokens drafted per step; at least 1, default 2.
        max_draft_tokens: Maximum number of tokens drafted per step; default 20.
        count_undecided: Include the newest draft token in the rejection probability. The draft
            model has not processed this token yet, so the head can only estimate the probability
            roughly. Defaults to true.
        use_prompt_lookup: Speed up the draft model itself with prompt lookup; default false.
        budget: Verify only the nodes that are expected to save time. The acceptance head estimates
            each node's acceptance probability. The budget never shortens sampled drafts, because
            shorter drafts would change the text. Defaults to true.
        second_choices: Also propose the draft model's most likely alternative to each draft token.
            If the draft token is wrong and the alternative is correct, the target accepts the
            alternative. With budget=false, second_choices has no effect. Defaults to true.
        verification: Verification method for sampled requests. "reject" is rejection sampling, as
            in the paper. "traverse" starts at the last draft token and accepts more tokens than
            "reject". With "follow", the draft model uses the same random noise as the target.
            Defaults to "reject".
    """

    head: str | None = None
    threshold: float | str | None = None
    min_draft_tokens: int = 2
    max_draft_tokens: int = 20
    count_undecided: bool = True
    use_prompt_lookup: bool = False
    budget: bool = True
    second_choices: bool = True
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
                f" 1, or {AUTO!r}. A higher threshold makes longer drafts."
            )
        require_range("specdec_pp", "min_draft_tokens", self.min_draft_tokens, 1)
        require_range(
            "specdec_pp", "max_draft_tokens", self.max_draft_tokens, self.min_draft_tokens
        )
        require_verification("specdec_pp", self.verification)
