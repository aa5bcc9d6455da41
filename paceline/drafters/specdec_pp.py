"""SpecDec++ (Huang, Guo, Wang 2024): a small model drafts until a trained head believes that the target will reject something.

The head reads the draft model's last hidden state of every drafted token and says how likely the token is to be accepted, given
that all before it are. Drafting stops once 1 - the product of these chances exceeds a threshold (section 3.2; that the best
policy is of this form is theorem 3.1). As in the public code, the token before the first drafted one is not judged (algorithm 2
would), and the token drawn in the stopping forward is verified with the others.

The head judges a token one forward after it was drawn. Beyond the paper, the newest token is judged at once by the distribution
it was drawn from (`AcceptanceHead.first_chances`), until the head takes over, if the head was trained to; `newest=false`
leaves that out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from paceline.acceptance import AcceptanceHead
from paceline.config import require_range
from paceline.drafter import Outcome
from paceline.drafters.draft_chain import LOOKUP_LENGTH, ChainDrafter, require_verification
from paceline.drafters.length_rules import Chain, Drawn, EstimateRule
from paceline.errors import ConfigError, did_you_mean
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.tree import DraftTree

AUTO = "auto"
_SHIPPED = Path(__file__).parent.parent / "demo" / "head"
_THRESHOLD = 0.7  # the paper's recommendation, for a head whose card does not say better
_FIRST_RATIO = 5.0  # target forward over draft forward, until it is known; the paper's pair has 4.8
_MEASURED = 8  # steps
_RENEWED = 32  # steps
_NOT_JUDGED = (0.0, 0.0)  # stands for the features of a token that is not the draft's


@dataclass(frozen=True, slots=True)
class SpecDecPPOptions:
    """Attributes:
    head: folder of the acceptance head. Not given: the head of the embedded draft model.
    threshold: drafting stops once the chance that something is rejected exceeds it, between 0 and 1; or "auto": whatever is
        fastest by the head's card and the measured times of both models. Not given: "auto" if the card can tell, else 0.7.
    min: fewest tokens drafted per step; max: most (the paper's bounds are 2 and 20).
    newest: the newest token counts too, by the distribution it was drawn from, if the head's card says how.
    lookup: the draft model itself is sped up by prompt lookup, so that it drafts the same tokens in fewer forwards.
    verification: "reject" (the papers' rule) or "follow" (same noise as the target); greedy is the same under both.
    """

    head: str | None = None
    threshold: float | str | None = None
    min: int = 2
    max: int = 20
    newest: bool = True
    lookup: bool = False
    verification: str = "reject"

    def __post_init__(self) -> None:
        if isinstance(self.threshold, str) and self.threshold != AUTO:
            hint = did_you_mean(self.threshold, [AUTO])
            raise ConfigError(f"specdec_pp: threshold is {self.threshold!r}; allowed is a number between 0 and 1.{hint}")
        if isinstance(self.threshold, float) and not 0.0 < self.threshold < 1.0:
            raise ConfigError(
                f"specdec_pp: threshold is {self.threshold}; allowed is a number above 0 and below 1, or {AUTO!r}. A higher one"
                " makes longer drafts."
            )
        require_range("specdec_pp", "min", self.min, 1)
        require_range("specdec_pp", "max", self.max, self.min)
        require_verification("specdec_pp", self.verification)


class HeadRule(EstimateRule):
    """Stops once the head believes that something will be rejected.

    A token is judged one forward after it was drawn, when its hidden state is known.
    """

    reads_hidden = True
    product = True

    def __init__(self, head: AcceptanceHead, threshold: float, least: int, most: int, newest: bool) -> None:
        super().__init__(most, 1.0 - threshold, least)
        self._head, self._newest = head, newest and bool(head.card.prior)

    def estimates(self, drawn: Drawn) -> list[float]:
        """The chance of the token before each new one; 1 before the first of a chain, which is not the draft's."""
        assert drawn.hidden is not None
        told = drawn.own_probs().log(), drawn.entropies()
        log_probs, entropies, outlooks = torch.stack([*told, self._head.first_chances(*told)]).tolist()
        features = list(zip(log_probs, entropies, strict=True))
        before: list[tuple[float, float]] = []
        unjudged = []
        for chain, run in zip(drawn.chains, drawn.runs, strict=True):
            first = len(before)
            new = features[first : first + len(run)]
            if not chain.tokens:
                unjudged.append(first)
            before += [chain.drawn_from[-1] if chain.tokens else _NOT_JUDGED, *new[:-1]]
            chain.drawn_from += new
            chain.outlooks += outlooks[first : first + len(run)]
        scalars = torch.tensor(before, device=drawn.hidden.device)
        chances: list[float] = self._head.chances(drawn.hidden, scalars[:, 0], scalars[:, 1]).tolist()
        for place in unjudged:
            chances[place] = 1.0
        return chances

    def outlook(self, chain: Chain, place: int) -> float:
        """The chance of the newest token, which the head has not judged yet."""
        return chain.outlooks[place] if self._newest else 1.0


class CostClock:
    """Measures, by running medians over the last steps, what a forward of either model costs."""

    def __init__(self) -> None:
        self._draft: deque[float] = deque(maxlen=_RENEWED)  # seconds per forward
        self._target: deque[float] = deque(maxlen=_RENEWED)
        self._steps = 0
        self._proposed: float | None = None

    def drafted(self, seconds: float, forwards: int) -> None:
        """A draft took so long; the target's turn begins."""
        if forwards:
            self._draft.append(seconds / forwards)
            self._proposed = time.perf_counter()

    def verified(self) -> tuple[float, float] | None:
        """The target is done: now and then, seconds per forward of the target and of the draft model."""
        if self._proposed is None:
            return None
        self._target.append(time.perf_counter() - self._proposed)
        self._proposed = None
        self._steps += 1
        if self._steps < _MEASURED or (self._steps - _MEASURED) % _RENEWED:
            return None
        return median(self._target), median(self._draft)


class SpecDecPP(ChainDrafter):
    """Drafts chains as long as an acceptance head believes in them.

    With `threshold="auto"` the lengths of drafts depend on measured times. The law of the text does not, and neither does a
    greedy text or one of verification "follow"; but a sampled text under "reject" is then another one of the same law in every
    run. A number as threshold makes it reproducible.

    Attributes:
        threshold: the one in force.
    Raises:
        ConfigError: "auto" with a head whose card has no curve.
    """

    name = "specdec_pp"
    Options = SpecDecPPOptions

    def __init__(self, options: SpecDecPPOptions, draft: CachedLM, head: AcceptanceHead) -> None:
        chosen = options.threshold or (AUTO if head.card.curve else _THRESHOLD)
        self._head = head
        self._clock = CostClock() if isinstance(chosen, str) else None
        self.threshold = chosen if isinstance(chosen, float) else head.threshold(_FIRST_RATIO, 1.0)
        self._head_rule = HeadRule(head, self.threshold, options.min, options.max, options.newest)
        super().__init__(draft, self._head_rule, options.verification, options.lookup, options.max + LOOKUP_LENGTH)

    @classmethod
    def build(cls, options: SpecDecPPOptions, draft: CachedLM) -> SpecDecPP:
        """From its options and the draft model.

        Raises:
            ConfigError: no head, or one that does not fit the draft model.
        """
        if options.head is not None:
            return cls(options, draft, AcceptanceHead.load(options.head, draft.model))
        try:
            head = AcceptanceHead.load(_SHIPPED, draft.model)
        except ConfigError as error:
            raise ConfigError(
                "specdec_pp: no head came, and the one that is shipped belongs to the embedded draft model. Train one for this"
                f" draft model (`paceline head`) and pass head=DIRECTORY. [{error}]"
            ) from error
        return cls(options, draft, head)

    def observe(self, outcomes: Seq[Outcome]) -> None:
        """Take the time of the step."""
        super().observe(outcomes)
        if self._clock is not None and (times := self._clock.verified()):
            self.threshold = self._head.threshold(*times)
            self._head_rule.stop_below = 1.0 - self.threshold

    def _draft_trees(self, seqs: list[Sequence], limits: list[int], max_nodes: list[int]) -> list[DraftTree]:
        """Chains, and the time they take."""
        counters = self._shadows[seqs[0].id].seq.counters
        before, start = counters.target_forwards, time.perf_counter()
        trees = super()._draft_trees(seqs, limits, max_nodes)
        if self._clock is not None:
            self._clock.drafted(time.perf_counter() - start, counters.target_forwards - before)
        return trees

    def _as_tree(self, chain: Chain) -> DraftTree:
        """With the head's chances, and for the last token, which it has not judged, the outlook."""
        place = len(chain.tokens)
        confidence = [*chain.estimates[1:place], chain.outlooks[place - 1]]
        return DraftTree.chain(chain.tokens, chain.probs if chain.draws else None, confidence)
