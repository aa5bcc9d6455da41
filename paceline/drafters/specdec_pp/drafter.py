"""SpecDec++ (Huang et al. 2024): draft until a head expects a rejection.

An acceptance head predicts the probability that the target rejects at least one draft token.
Drafting stops when this probability exceeds a threshold (algorithm 2). With `threshold=auto`, the
drafter picks the threshold with the lowest latency. It computes the latency (equation 2.3) from
measured times and from the costs of each threshold, which are stored with the head. Unlike in the
paper, the draft tree may also contain second choices. A second choice is the draft model's most
likely alternative to a draft token.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from statistics import median

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.drafters.shared.chain import Chain, DrawnToken
from paceline.drafters.shared.chains import LOOKUP_LENGTH, ChainDrafter
from paceline.drafters.shared.draft_step import chain_tree
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.drafters.specdec_pp.head_rule import HeadRule
from paceline.drafters.specdec_pp.options import AUTO, SpecDecPPOptions
from paceline.drafters.specdec_pp.settings import (
    FIRST_MEASURED_STEPS,
    INITIAL_TIME_RATIO,
    MEASURED_STEPS,
    THRESHOLD,
)
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM

__all__ = ["SpecDecPP", "SpecDecPPOptions"]


class CostClock:
    """Measures the median duration of forward passes over recent steps.

    The target's and the draft model's forward passes are timed separately.
    """

    def __init__(self) -> None:
        self._draft: deque[float] = deque(maxlen=MEASURED_STEPS)  # seconds per forward
        self._target: deque[float] = deque(maxlen=MEASURED_STEPS)
        self._steps = 0
        self._proposed: float | None = None

    def drafted(self, seconds: float, forwards: int) -> None:
        """Record the drafting time, and start timing the target's forward pass.

        Args:
            seconds: Time spent drafting in this step, in seconds.
            forwards: Number of draft-model forward passes; with 0, nothing is recorded.
        """
        if forwards:
            self._draft.append(seconds / forwards)
            self._proposed = time.perf_counter()

    def verified(self) -> tuple[float, float] | None:
        """Stop timing the target; every few steps, return the median times.

        Returns:
            Median seconds per forward pass of the target and of the draft model. The first values
            are returned after FIRST_MEASURED_STEPS steps, and later ones every MEASURED_STEPS
            steps. None in all other steps.
        """
        if self._proposed is None:
            return None
        self._target.append(time.perf_counter() - self._proposed)
        self._proposed = None
        self._steps += 1
        if (
            self._steps < FIRST_MEASURED_STEPS
            or (self._steps - FIRST_MEASURED_STEPS) % MEASURED_STEPS
        ):
            return None
        return median(self._target), median(self._draft)


class SpecDecPP(ChainDrafter):
    """Drafts a chain per request until an acceptance head expects a rejection.

    With `threshold="auto"`, draft lengths depend on measured times, and may differ between runs.
    Neither greedy text nor text sampled with verification "follow" depends on the draft lengths.
    With the other verification methods, sampled text differs between runs unless the threshold is
    fixed, but its distribution does not change.

    Attributes:
        threshold: Current threshold. Drafting stops when the predicted probability of a rejection
            exceeds the threshold.
    Raises:
        ConfigError: The threshold is "auto", but no threshold costs are stored with the head.
    """

    name = "specdec_pp"
    keeps_tokens = True
    needs_draft_model = True
    needs_trained = True
    Options = SpecDecPPOptions

    def __init__(self, options: SpecDecPPOptions, draft: CachedLM, head: AcceptanceHead) -> None:
        chosen = options.threshold or (AUTO if head.card.curve else THRESHOLD)
        self._head = head
        self._clock = CostClock() if isinstance(chosen, str) else None
        self.threshold = (
            chosen if isinstance(chosen, float) else head.threshold(INITIAL_TIME_RATIO, 1.0)
        )
        self._head_rule = HeadRule(
            head,
            self.threshold,
            options.min_draft_tokens,
            options.max_draft_tokens,
            options.count_undecided,
        )
        super().__init__(
            draft,
            self._head_rule,
            options.verification,
            options.use_prompt_lookup,
            options.max_draft_tokens + LOOKUP_LENGTH,
        )
        self.budget, self._second_choices = options.budget, options.second_choices

    @classmethod
    def build(cls, options: SpecDecPPOptions, draft: CachedLM) -> SpecDecPP:
        """Build the drafter from its options and the draft model.

        Raises:
            ConfigError: The head is missing, or was trained for a different draft model.
        """
        if options.head is not None:
            return cls(options, draft, AcceptanceHead.load(options.head, draft.model))
        try:
            head = AcceptanceHead.shipped(draft.model)
        except ConfigError as error:
            raise ConfigError(
                "specdec_pp: no head was given, and the packaged heads belong to the packaged"
                " draft models. Train a head for this draft model (`paceline head`) and pass"
                f" head=DIRECTORY. [{error}]"
            ) from error
        return cls(options, draft, head)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Record the target's time for the step, and update an automatic threshold."""
        super().observe(outcomes)
        if self._clock is not None and (times := self._clock.verified()):
            self.threshold = self._head.threshold(*times)
            self._head_rule.stop_below = 1.0 - self.threshold

    def _draft_trees(
        self, requests: list[Request], limits: list[int], max_nodes: list[int]
    ) -> list[DraftTree]:
        """Draft chains, and measure the drafting time."""
        # The draft budget may be switched off after construction.
        self._head_rule.keep_second_choices = self._second_choices and self.budget
        counters = self._shadows[requests[0].id].request.counters
        before, start = counters.target_forwards, time.perf_counter()
        trees = super()._draft_trees(requests, limits, max_nodes)
        if self._clock is not None:
            self._clock.drafted(time.perf_counter() - start, counters.target_forwards - before)
        return trees

    def _as_tree(self, chain: Chain) -> DraftTree:
        """Return the chain and the most likely second choices as a tree.

        Every node has a confidence. The head has not evaluated the last token of the chain yet, so
        the confidence of this token is an estimate.
        """
        count = len(chain.tokens)
        confidence = [*chain.confidences[1:count], chain.drawn[count - 1].early_confidence]
        tree = chain_tree(chain, confidence)
        if chain.draws or not self._head_rule.keep_second_choices:
            return tree
        probabilities = [
            _second_probability(drawn, own)
            for drawn, own in zip(chain.drawn, confidence, strict=False)
        ]
        reached = [1.0, *tree.path_chances()]
        likeliest = sorted(range(count), key=lambda index: -reached[index] * probabilities[index])
        chosen = likeliest[: chain.room]
        return DraftTree(
            [*tree.token_ids, *(chain.drawn[index].second for index in chosen)],
            [*tree.parents, *(index - 1 for index in chosen)],
            None,
            [*confidence, *(probabilities[index] for index in chosen)],
            origins=[Origin.MODEL] * (count + len(chosen)),
        )


def _second_probability(drawn: DrawnToken, confidence: float) -> float:
    """Return the probability that the draft token is wrong and its alternative right.

    The result is the product of two probabilities. The first is 1 - confidence: the draft token is
    wrong. The second is that the alternative is right in this case: the draft model's probability
    of the alternative, divided by its probability of all tokens except the draft token.

    Args:
        drawn: Statistics of the draft token and of its most likely alternative.
        confidence: Acceptance probability of the draft token.
    """
    others = max(1.0 - math.exp(drawn.log_prob), drawn.second_prob, 1e-6)
    return (1.0 - confidence) * drawn.second_prob / others
