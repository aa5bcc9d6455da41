"""A sequence in the draft model's cache while Ouroboros drafts for it, and what else the draft model might have said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.drafters.ouroboros.learning import Proposal
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.drafters.shared.shadow import Shadow

_CHOICES = 3  # of the draft model per token, the drafted one included
_LEAST_CONFIDENCE = 0.03  # in an alternative, that it is worth a node


class Alternative(NamedTuple):
    """A token the draft model might have said instead.

    Attributes:
        confidence: the probability, by the draft model, that the draft is right up to there and this token follows.
        place: its place in the drafted chain.
        token: its id.
    """

    confidence: float
    place: int
    token: int


@dataclass(slots=True)
class PhraseShadow(Shadow):
    """What a sequence owns here.

    Attributes:
        pool: the phrases this sequence uses.
        pooled_tokens: how many of the target's tokens are in it.
        goal: tokens wanted of the running draft.
        confidence: the probability, by the draft model, that the draft so far is right.
        alternatives: what else it might have said.
        proposal: the newest one.
    """

    pool: NgramPool
    pooled_tokens: int = 0
    goal: int = 0
    confidence: float = 1.0
    alternatives: list[Alternative] = field(default_factory=list)
    proposal: Proposal = field(default_factory=Proposal)

    @property
    def drafted(self) -> list[int]:
        """The draft so far."""
        return self.seq.token_ids[self.agreed :]

    @property
    def open(self) -> bool:
        """Whether more is to be drafted; nothing follows an end of sequence."""
        return len(self.seq) - self.agreed < self.goal and self.seq.finish_reason is None

    def note_alternatives(self, run: list[int], logits: Tensor) -> None:
        """Keep the likeliest other tokens in the places of `run`, which is about to be added to the draft.

        Args:
            run: the tokens that the draft model says.
            logits: [len(run), vocab], from which it chose each of them.
        """
        probs = logits.float().softmax(-1)
        top = probs.topk(min(_CHOICES, probs.shape[-1]), dim=-1)
        own = probs[torch.arange(len(run)), torch.tensor(run, device=probs.device)].tolist()
        first = len(self.seq) - self.agreed
        for place, (said, tokens, values) in enumerate(zip(run, top.indices.tolist(), top.values.tolist(), strict=True), first):
            for token, value in zip(tokens, values, strict=True):
                if token != said and self.confidence * value >= _LEAST_CONFIDENCE:
                    self.alternatives.append(Alternative(self.confidence * value, place, token))
            self.confidence *= own[place - first]
