"""Options of the draft-model drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import require_range
from paceline.drafters.draft_chain import require_verification
from paceline.drafters.length_rules import ConfidenceRule, EntropyRule, HeuristicRule, LengthRule, ProductRule
from paceline.errors import ConfigError, did_you_mean

MOST_NODES = 24  # where no length is given
_RULES = ("product", "confidence", "entropy", "heuristic")
_STOP_CHAIN_BELOW = {"product": 0.1, "confidence": 0.4, "entropy": 0.4}
_STOP_TREE_BELOW = 0.5
_BRANCH_ABOVE = 0.06
_FIRST_LENGTH = 5


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Attributes:
    length: most tokens drafted per step (K). Not given: as long as the draft is sure, at most 24 (in a batch of 8: 3).
    rule: how sure the draft is of a chain. "product" of its highest probabilities; "confidence", the probability of the newest
        token; "entropy", 1 - sqrt(0.2 entropy in nats) of what it was drawn from; or "heuristic", which asks no such thing but
        drafts two tokens more after a draft that was accepted whole, else one less, from `length` (5) on. Guesses are trees
        unless a length, or a rule other than "product", is given; drafts of these rules end with an end-of-sequence token.
    stop_below: stop drafting a sequence once the rule's figure falls below; for a tree, the chance that one of its newest guesses
        is right, by the draft's probabilities and how often such guesses came true. What was drafted last is kept. 0 = never, the
        default of "product" where a length is given: exactly K tokens. Else 0.5, for chains 0.1, by the other rules 0.4.
    branch_above: guess the draft's further choices as well wherever their chance, with all before them, is above. 1 = never,
        the default where a length is given; else 0.06. Not for draws.
    lookup: the draft model itself is sped up by prompt lookup, so that it drafts the same tokens in fewer forwards. Off where
        a length or a rule other than "product" is given, else on.
    verification: "reject" (the papers' rule) or "follow" (same noise as the target); greedy is the same under both.
    """

    length: int | None = None
    rule: str = "product"
    stop_below: float | None = None
    branch_above: float | None = None
    lookup: bool | None = None
    verification: str = "reject"

    def __post_init__(self) -> None:
        if self.length is not None:
            require_range("draft_model", "length", self.length, 1)
        if self.rule not in _RULES:
            raise ConfigError(f"draft_model: rule is {self.rule!r}.{did_you_mean(self.rule, _RULES)}")
        for name, rules in (("stop_below", _RULES[:3]), ("branch_above", _RULES[:1])):
            value = getattr(self, name)
            if value is not None:
                require_range("draft_model", name, value, 0, 1)
                if self.rule not in rules:
                    raise ConfigError(
                        f"draft_model: {name} came with rule {self.rule!r}, which has no use for it; it goes with"
                        f" {', '.join(rules)}. Leave one of the two out."
                    )
        require_verification("draft_model", self.verification)

    @property
    def longest(self) -> int:
        """Most tokens drafted per step; for the heuristic, in the first one."""
        if self.length is not None:
            return self.length
        return _FIRST_LENGTH if self.rule == "heuristic" else MOST_NODES

    def length_rule(self) -> LengthRule:
        """The rule for chains."""
        if self.rule == "heuristic":
            return HeuristicRule(self.longest)
        kinds = {"product": ProductRule, "confidence": ConfidenceRule, "entropy": EntropyRule}
        bound = self._stop(_STOP_CHAIN_BELOW[self.rule])
        return kinds[self.rule](self.longest, bound) if bound > 0 else LengthRule(self.longest)

    @property
    def tree_chance(self) -> float:
        """The chance below which a tree is finished."""
        return self._stop(_STOP_TREE_BELOW)

    def _stop(self, default: float) -> float:
        if self.stop_below is not None:
            return self.stop_below
        return default if self.shares or self.rule != "product" else 0.0

    @property
    def branch_chance(self) -> float:
        """The chance a further choice must have."""
        if self.branch_above is not None:
            return self.branch_above
        return _BRANCH_ABOVE if self.shares else 1.0

    @property
    def looks_up(self) -> bool:
        """Whether drafting is sped up by prompt lookup."""
        return self.shares if self.lookup is None else self.lookup

    @property
    def shares(self) -> bool:
        """Whether drafts are as long as pays, and the sequences of a batch share the nodes one of them may have."""
        return self.length is None and self.rule == "product"
