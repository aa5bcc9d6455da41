"""Options of the draft-model drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.drafters.shared.verification import require_verification
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range

if TYPE_CHECKING:
    from paceline.drafters.shared.length_rules import LengthRule, ThresholdRule

MOST_NODES = 24  # where no length is given
_RULES = ("product", "confidence", "entropy", "heuristic")
_STOP_CHAIN_BELOW = {"product": 0.1, "confidence": 0.4, "entropy": 0.4}
_STOP_TREE_BELOW = 0.5
_BRANCH_ABOVE = 0.06
_FIRST_LENGTH = 5


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Options of `draft_model`.

    Attributes:
        length: K, most tokens drafted per step. Not given: as long as the draft is sure, at most 24
            (in a batch of 8: 3). With rule heuristic: most tokens of the first draft, 5 if not
            given.
        rule: what ends a chain: the "product" of the draft's highest probabilities; the probability
            of the newest token ("confidence"); the "entropy" it was drawn with; or "heuristic",
            what became of the last draft.
        stop_below: stop drafting once the rule's figure falls below this; 0 = never. Not given: 0
            with a length and rule product; else 0.5 for trees, 0.1 for chains by rule product, 0.4
            by the other rules.
        branch_above: guess the draft's further choices wherever their confidence is above this; 1 =
            never. Not given: 0.06, or 1 with a length. Not for draws.
        lookup: speed up the draft model itself by prompt lookup. Not given: on, but off with a
            length or another rule.
        budget: of a tree, the engine feeds what pays for its forward, and drafts are left out while
            they do not pay; never of draws, which the text depends on. Not given: on, but off with
            a length or another rule.
        verification: "reject" (the papers' rule) or "follow" (same noise as the target). Greedy is
            the same under both.
    """

    length: int | None = None
    rule: str = "product"
    stop_below: float | None = None
    branch_above: float | None = None
    lookup: bool | None = None
    budget: bool | None = None
    verification: str = "reject"

    def __post_init__(self) -> None:
        if self.length is not None:
            require_range("draft_model", "length", self.length, 1)
        if self.rule not in _RULES:
            raise ConfigError(
                f"draft_model: got rule={self.rule!r}; expected a known"
                f" value.{did_you_mean(self.rule, _RULES)}"
            )
        for name, rules in (("stop_below", _RULES[:3]), ("branch_above", _RULES[:1])):
            value = getattr(self, name)
            if value is not None:
                require_range("draft_model", name, value, 0, 1)
                if self.rule not in rules:
                    raise ConfigError(
                        f"draft_model: got {name} with rule={self.rule!r}; expected rule"
                        f" {', '.join(rules)} with it. Leave one of"
                        " the two out."
                    )
        require_verification("draft_model", self.verification)

    @property
    def longest(self) -> int:
        """Most tokens drafted per step; for the heuristic, in the first one."""
        if self.length is not None:
            return self.length
        return _FIRST_LENGTH if self.rule == "heuristic" else MOST_NODES

    def length_rule(self) -> LengthRule:
        """Return the rule for chains."""
        from paceline.drafters.shared.length_rules import (
            ConfidenceRule,
            EntropyRule,
            HeuristicRule,
            LengthRule,
            ProductRule,
        )

        if self.rule == "heuristic":
            return HeuristicRule(self.longest)
        rules: dict[str, type[ThresholdRule]] = {
            "product": ProductRule,
            "confidence": ConfidenceRule,
            "entropy": EntropyRule,
        }
        bound = self._stop_threshold(_STOP_CHAIN_BELOW[self.rule])
        return rules[self.rule](self.longest, bound) if bound > 0 else LengthRule(self.longest)

    @property
    def tree_stop_threshold(self) -> float:
        """The summed confidence of the newest guesses below which a tree is finished."""
        return self._stop_threshold(_STOP_TREE_BELOW)

    def _stop_threshold(self, default: float) -> float:
        if self.stop_below is not None:
            return self.stop_below
        return default if self.shares or self.rule != "product" else 0.0

    @property
    def branch_threshold(self) -> float:
        """The path confidence a further choice must have."""
        if self.branch_above is not None:
            return self.branch_above
        return _BRANCH_ABOVE if self.shares else 1.0

    @property
    def looks_up(self) -> bool:
        """Whether drafting is sped up by prompt lookup."""
        return self.shares if self.lookup is None else self.lookup

    @property
    def cuts(self) -> bool:
        """Whether there is a budget."""
        return self.shares if self.budget is None else self.budget

    @property
    def shares(self) -> bool:
        """Whether drafts are as long as pays, and the sequences of a batch share the nodes one
        of them may have.
        """
        return self.length is None and self.rule == "product"
