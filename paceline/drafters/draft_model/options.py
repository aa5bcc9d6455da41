"""Define and validate the options of the `draft_model` drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.drafters.draft_model.settings import (
    BRANCH_THRESHOLD,
    CHAIN_STOP_THRESHOLDS,
    FIRST_LENGTH,
    MAX_NODES,
    TREE_STOP_THRESHOLD,
)
from paceline.drafters.shared.verification import require_verification
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range

if TYPE_CHECKING:
    from paceline.drafters.shared.length_rules import LengthRule, ThresholdRule

_RULES = ("product", "confidence", "entropy", "heuristic")


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Options of `draft_model`, which drafts with a small model.

    Attributes:
        max_draft_tokens: K, maximum number of tokens drafted per step; at least 1. Defaults to no
            fixed limit, or to 5 with stop_rule=heuristic. Without a fixed limit, the draft grows
            while the draft model is confident, up to 24 tokens, or up to 3 tokens in a batch of 8.
            With stop_rule=heuristic, K is the maximum length of the first draft.
        stop_rule: Rule that ends a chain. "product" uses the product of the draft model's highest
            probabilities, "confidence" uses the probability of the newest token, and "entropy" uses
            the entropy of its distribution. "heuristic" makes the next draft longer if the target
            accepted the whole draft, and otherwise shorter. Defaults to "product".
        stop_threshold: Drafting stops once the value that stop_rule computes falls below this
            threshold; from 0 to 1. With 0, a draft never stops early. Defaults to 0.5 for trees,
            and to 0, 0.1 or 0.4 for chains. For chains, the default is 0.4 if stop_rule is
            "confidence" or "entropy". With "product", it is 0.1, or 0 if max_draft_tokens is set.
        branch_threshold: Draft alternative tokens only if their path probability reaches this
            number; from 0 to 1. With branch_threshold=1, drafts are chains. Defaults to 0.06, or to
            1 if max_draft_tokens is set. Sampled drafts ignore branch_threshold.
        use_prompt_lookup: Speed up the draft model itself with prompt lookup. Defaults to true, or
            to false if max_draft_tokens is set or stop_rule is changed.
        budget: Verify only the nodes that are expected to save time. The drafter pauses while it is
            slower than plain decoding. The budget never shortens sampled drafts, because shorter
            drafts would change the text. Defaults to true, or to false if max_draft_tokens is set
            or stop_rule is changed.
        verification: Verification method for sampled requests. "reject" is rejection sampling, as
            in the papers. "traverse" starts at the last draft token and accepts more tokens than
            "reject". With "follow", the draft model uses the same random noise as the target.
            Defaults to "reject".
        other_tokenizer: Accept a draft model with a different tokenizer. The drafter converts the
            drafted text, or drafts only tokens that are in both vocabularies. Defaults to false.
    """

    max_draft_tokens: int | None = None
    stop_rule: str = "product"
    stop_threshold: float | None = None
    branch_threshold: float | None = None
    use_prompt_lookup: bool | None = None
    budget: bool | None = None
    verification: str = "reject"
    other_tokenizer: bool = False

    def __post_init__(self) -> None:
        if self.max_draft_tokens is not None:
            require_range("draft_model", "max_draft_tokens", self.max_draft_tokens, 1)
        if self.stop_rule not in _RULES:
            hint = did_you_mean(self.stop_rule, _RULES)
            raise ConfigError(
                f"draft_model: got stop_rule={self.stop_rule!r}; expected a known value.{hint}"
            )
        for name, rules in (("stop_threshold", _RULES[:3]), ("branch_threshold", _RULES[:1])):
            value = getattr(self, name)
            if value is not None:
                require_range("draft_model", name, value, 0, 1)
                if self.stop_rule not in rules:
                    raise ConfigError(
                        f"draft_model: {name} has no effect with stop_rule={self.stop_rule!r}; it"
                        f" needs {' or '.join(rules)}. Leave one of the two out."
                    )
        require_verification("draft_model", self.verification)

    @property
    def draft_limit(self) -> int:
        """Maximum draft length in tokens; "heuristic" applies it only to the first draft."""
        if self.max_draft_tokens is not None:
            return self.max_draft_tokens
        return FIRST_LENGTH if self.stop_rule == "heuristic" else MAX_NODES

    def length_rule(self) -> LengthRule:
        """Return the rule that decides how long a drafted chain becomes."""
        from paceline.drafters.shared.length_rules import (
            ConfidenceRule,
            EntropyRule,
            HeuristicRule,
            LengthRule,
            ProductRule,
        )

        limit = self.draft_limit
        if self.stop_rule == "heuristic":
            return HeuristicRule(limit)
        rules: dict[str, type[ThresholdRule]] = {
            "product": ProductRule,
            "confidence": ConfidenceRule,
            "entropy": EntropyRule,
        }
        threshold = self._stop_threshold(CHAIN_STOP_THRESHOLDS[self.stop_rule])
        return rules[self.stop_rule](limit, threshold) if threshold > 0 else LengthRule(limit)

    @property
    def tree_stop_threshold(self) -> float:
        """Sum of the newest nodes' path confidences below which the tree stops growing."""
        return self._stop_threshold(TREE_STOP_THRESHOLD)

    def _stop_threshold(self, default: float) -> float:
        if self.stop_threshold is not None:
            return self.stop_threshold
        return default if self.adapts_length or self.stop_rule != "product" else 0.0

    @property
    def min_branch_confidence(self) -> float:
        """Minimum path confidence at which an alternative token is added to the tree."""
        if self.branch_threshold is not None:
            return self.branch_threshold
        return BRANCH_THRESHOLD if self.adapts_length else 1.0

    @property
    def looks_up(self) -> bool:
        """Return whether the draft model itself is sped up by prompt lookup."""
        return self.adapts_length if self.use_prompt_lookup is None else self.use_prompt_lookup

    @property
    def has_budget(self) -> bool:
        """Return whether the engine may cut the drafts to save verification time."""
        return self.adapts_length if self.budget is None else self.budget

    @property
    def adapts_length(self) -> bool:
        """Return whether `max_draft_tokens` and `stop_rule` both have their defaults.

        The draft then grows while the draft model is confident. The requests of a batch share one
        limit on the number of nodes.
        """
        return self.max_draft_tokens is None and self.stop_rule == "product"
