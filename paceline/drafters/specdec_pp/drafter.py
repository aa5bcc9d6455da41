"""SpecDec++ (Huang, Guo, Wang 2024): a small model drafts until a trained head expects the target
to reject something.

Section 3.2, algorithm 2: an acceptance head reads the draft model's last hidden state of every
drafted token and estimates the probability that the token is accepted, given that all before it are
(equation 3.1). Drafting stops once 1 - the product of these probabilities exceeds a threshold;
theorem 3.1 says that the best policy is of this form.

What is different here. As in the public code, the token before the first drafted one is not judged
(algorithm 2 would), and the token drawn in the stopping forward is verified with the others. Beyond
the paper, the newest token, which the head can judge only one forward after it was drawn, counts at
once by the distribution it was drawn from (`AcceptanceHead.early_confidences`), if the head was
trained to; `newest=false` leaves that out. `threshold=auto` picks the threshold by measured times.
And the engine cuts a chain to what pays for its forward: the threshold bounds a rejection, whatever
one more row costs this target on this machine. Where the head doubts a token, the draft's second
choice is often worth more than a further one behind it; so guesses offer both, and the engine feeds
the likelier (`seconds`).
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
from paceline.drafters.shared.chains import LOOKUP_LENGTH, ChainDrafter, chain_tree
from paceline.drafters.shared.length_rules import Chain, DrawnToken
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.drafters.specdec_pp.head_rule import HeadRule
from paceline.drafters.specdec_pp.options import AUTO, SpecDecPPOptions
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM

__all__ = ["SpecDecPP", "SpecDecPPOptions"]

_THRESHOLD = 0.7  # the paper's recommendation, for a head whose card does not say better
_FIRST_RATIO = 5.0  # target forward over draft forward, until it is known; the paper's pair has 4.8
_FIRST_MEASURED = 8  # steps until the first measured times are used
_RENEWED = 32  # steps between later ones, and how many of them count


class CostClock:
    """Measures what a forward of either model costs: running medians over the last steps."""

    def __init__(self) -> None:
        self._draft: deque[float] = deque(maxlen=_RENEWED)  # seconds per forward
        self._target: deque[float] = deque(maxlen=_RENEWED)
        self._steps = 0
        self._proposed: float | None = None

    def drafted(self, seconds: float, forwards: int) -> None:
        """Note how long a draft took; the target's turn begins now."""
        if forwards:
            self._draft.append(seconds / forwards)
            self._proposed = time.perf_counter()

    def verified(self) -> tuple[float, float] | None:
        """Note that the target is done. Now and then, return the seconds per forward of the
        target and of the draft model.
        """
        if self._proposed is None:
            return None
        self._target.append(time.perf_counter() - self._proposed)
        self._proposed = None
        self._steps += 1
        if self._steps < _FIRST_MEASURED or (self._steps - _FIRST_MEASURED) % _RENEWED:
            return None
        return median(self._target), median(self._draft)


class SpecDecPP(ChainDrafter):
    """Drafts chains as long as an acceptance head believes in them.

    With `threshold="auto"` the lengths of drafts depend on measured times. The distribution of the
    text does not, and neither does a greedy text or one of verification "follow"; but a sampled
    text under "reject" is then another draw in every run. A number as threshold makes it
    reproducible.

    Attributes:
        threshold: the one in force.
    Raises:
        ConfigError: "auto" with a head whose card has no curve.
    """

    name = "specdec_pp"
    needs_draft_model = True
    needs_trained = True
    Options = SpecDecPPOptions

    def __init__(self, options: SpecDecPPOptions, draft: CachedLM, head: AcceptanceHead) -> None:
        chosen = options.threshold or (AUTO if head.card.curve else _THRESHOLD)
        self._head = head
        self._clock = CostClock() if isinstance(chosen, str) else None
        self.threshold = chosen if isinstance(chosen, float) else head.threshold(_FIRST_RATIO, 1.0)
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
        self.budget, self._seconds = options.budget, options.second_choices

    @classmethod
    def build(cls, options: SpecDecPPOptions, draft: CachedLM) -> SpecDecPP:
        """Build it from its options and the draft model.

        Raises:
            ConfigError: no head, or one that does not fit the draft model.
        """
        if options.head is not None:
            return cls(options, draft, AcceptanceHead.load(options.head, draft.model))
        try:
            head = AcceptanceHead.shipped(draft.model)
        except ConfigError as error:
            raise ConfigError(
                "specdec_pp: got no head; expected one, since those that are shipped belong to the"
                " shipped drafts. Train"
                f" one for this draft model (`paceline head`) and pass head=DIRECTORY. [{error}]"
            ) from error
        return cls(options, draft, head)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Note the time of the step, and choose the threshold anew by it."""
        super().observe(outcomes)
        if self._clock is not None and (times := self._clock.verified()):
            self.threshold = self._head.threshold(*times)
            self._head_rule.stop_below = 1.0 - self.threshold

    def _draft_trees(
        self, requests: list[Request], limits: list[int], max_nodes: list[int]
    ) -> list[DraftTree]:
        """Draft chains, and note the time they take."""
        self._head_rule.keep_second_choices = (
            self._seconds and self.budget
        )  # the budget may be switched off
        counters = self._shadows[requests[0].id].request.counters
        before, start = counters.target_forwards, time.perf_counter()
        trees = super()._draft_trees(requests, limits, max_nodes)
        if self._clock is not None:
            self._clock.drafted(time.perf_counter() - start, counters.target_forwards - before)
        return trees

    def _as_tree(self, chain: Chain) -> DraftTree:
        """Return the chain with the head's confidences, and the early one for the last token, which
        it has not judged.

        Guesses have second choices beside them, as many as there is room for.
        """
        count = len(chain.tokens)
        confidence = [*chain.confidences[1:count], chain.drawn[count - 1].early_confidence]
        tree = chain_tree(chain, confidence)
        if chain.draws or not self._head_rule.keep_second_choices:
            return tree
        chances = [_second_chance(*one) for one in zip(chain.drawn, confidence, strict=False)]
        reached = [1.0, *tree.path_chances()]
        places = sorted(range(count), key=lambda place: -reached[place] * chances[place])[
            : chain.room
        ]
        return DraftTree(
            [*tree.token_ids, *(chain.drawn[place].second for place in places)],
            [*tree.parents, *(place - 1 for place in places)],
            None,
            [*confidence, *(chances[place] for place in places)],
            origins=[Origin.MODEL] * (count + len(places)),
        )


def _second_chance(drawn: DrawnToken, confidence: float) -> float:
    """Return the chance of the second choice: that the token is rejected, and this is the one in
    its place.
    """
    others = max(1.0 - math.exp(drawn.log_prob), drawn.second_prob, 1e-6)
    return (1.0 - confidence) * drawn.second_prob / others
