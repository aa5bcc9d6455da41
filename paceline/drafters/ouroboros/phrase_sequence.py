"""Hold a request in the draft model's cache while Ouroboros drafts for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.backend.resolve import topk_tokens
from paceline.core.drafter import TopTokens
from paceline.drafters.ouroboros.proposal import Alternative, Proposal
from paceline.drafters.ouroboros.settings import CHOICES, MIN_ALTERNATIVE, MIN_REACH
from paceline.drafters.shared.draft_sequence import DraftSequence
from paceline.drafters.shared.ngram_pool import NgramPool


@dataclass(slots=True)
class PhraseSequence(DraftSequence):
    """Hold the phrase draft for one request.

    Attributes:
        pool: Phrases that this request uses.
        pooled_tokens: Number of target tokens in the pool.
        goal: Target length of the current draft, in tokens.
        reach: With the budget, maximum draft length, which is slightly more than the engine
            processes.
        prob: The draft model's probability that the draft so far is right.
        probs: Probability of each token given the tokens before.
        alternatives: Other tokens that the draft model considered.
        proposal: Newest proposal.
    """

    pool: NgramPool
    pooled_tokens: int = 0
    goal: int = 0
    reach: int = 1 << 30
    prob: float = 1.0
    probs: list[float] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    proposal: Proposal = field(default_factory=Proposal)

    @property
    def drafted(self) -> list[int]:
        """Number of tokens drafted so far."""
        return self.request.token_ids[self.agreed :]

    @property
    def open(self) -> bool:
        """Return whether drafting continues; nothing follows an end-of-sequence token."""
        return len(self.request) - self.agreed < self.goal and self.request.finish_reason is None

    def note_processed(self, count: int) -> None:
        """Record how many nodes in the drafted chain the engine processed."""
        uncut = count == len(self.proposal.chain)
        self.reach = max(count, self.reach) + 1 if uncut else max(MIN_REACH, count + 1)

    def begin(self) -> None:
        """Begin an empty draft."""
        self.prob, self.probs, self.alternatives = 1.0, [], []

    def note_probs(self, run: list[int], own: list[float], top: TopTokens) -> None:
        """Record the probabilities of the next tokens and their alternatives.

        Args:
            run: Tokens about to be added to the draft.
            own: Probabilities of these tokens.
            top: Most likely tokens at their positions.
        """
        first = len(self.request) - self.agreed
        likely = zip(top.token_ids.tolist(), top.probs.tolist(), strict=True)
        for index, (drafted, prob, (tokens, values)) in enumerate(
            zip(run, own, likely, strict=True), first
        ):
            for token, value in zip(tokens, values, strict=True):
                if token != drafted and self.prob * value >= MIN_ALTERNATIVE:
                    self.alternatives.append(Alternative(self.prob * value, value, index, token))
            self.prob *= prob
        self.probs += own


def probs_of(run: list[int], logits: Tensor) -> tuple[list[float], TopTokens]:
    """Return the tokens' probabilities and the most likely tokens at their positions.

    Args:
        run: Token ids.
        logits: [len(run), vocab], from which the tokens were chosen.
    """
    # A broken draft model may produce NaN or infinite logits.
    probs = logits.float().softmax(-1).nan_to_num(0.0)
    own: list[float] = probs[
        torch.arange(len(run)), torch.tensor(run, device=probs.device)
    ].tolist()
    return own, TopTokens(*topk_tokens(logits, CHOICES))
