"""Build a request's draft from phrases in a pool (Ouroboros).

A phrase is a short sequence of tokens. The draft grows in the draft model's KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from paceline.backend.resolve import topk_tokens
from paceline.core.drafter import Outcome, TopTokens
from paceline.core.node_logits import NodeLogits
from paceline.drafters.ouroboros.proposal import Alternative, Proposal
from paceline.drafters.ouroboros.settings import CHOICES, MIN_ALTERNATIVE, MIN_REACH
from paceline.drafters.shared.draft_sequence import DraftSequence
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.util.device_copies import fetch, upload


class RunProbs(NamedTuple):
    """The draft model's probabilities for consecutive draft tokens.

    Attributes:
        own: Probability of each token.
        top: The draft model's most likely tokens at each of these positions.
    """

    own: list[float]
    top: TopTokens


@dataclass(slots=True)
class PhraseSequence(DraftSequence):
    """The draft model's copy of a request, with a draft that consists of phrases.

    Attributes:
        pool: Phrase pool that this request uses.
        pooled_tokens: Number of the request's tokens whose n-grams are in the pool.
        goal: Intended length of the current draft, in tokens.
        reach: Maximum draft length, in tokens, if the draft budget is on; slightly larger than the
            number of nodes that the engine verifies.
        prob: The draft model's probability of the whole draft so far.
        probs: The draft model's probability of each token given the preceding tokens.
        alternatives: Other tokens that the draft model considered likely.
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
        """Tokens drafted so far."""
        return self.request.token_ids[self.agreed :]

    @property
    def open(self) -> bool:
        """Return whether the draft is still shorter than `goal` and has not ended.

        An end-of-sequence token ends the draft.
        """
        return len(self.request) - self.agreed < self.goal and self.request.finish_reason is None

    def note_processed(self, count: int) -> None:
        """Adapt the maximum length of later drafts to the number of verified nodes.

        Args:
            count: Number of verified nodes in the last drafted chain.
        """
        uncut = count == len(self.proposal.chain)
        self.reach = max(count, self.reach) + 1 if uncut else max(MIN_REACH, count + 1)

    def begin(self) -> None:
        """Start an empty draft, without probabilities or alternatives."""
        self.prob, self.probs, self.alternatives = 1.0, [], []

    def note_probs(self, run: list[int], probs: RunProbs) -> None:
        """Record the probabilities of the next draft tokens, and likely alternatives.

        Args:
            run: Tokens about to be added to the draft.
            probs: The draft model's probabilities at the positions of these tokens.
        """
        own, top = probs
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


def probs_of_runs(outcomes: Sequence[Outcome], logits: NodeLogits) -> list[RunProbs]:
    """Return the draft model's probabilities of the tokens that it has just drafted.

    Args:
        outcomes: Outcomes of the draft model's steps; each outcome contains at least one new token.
        logits: Logits from which the tokens were chosen. There is one group of rows per outcome, in
            the same order.
    """
    walked = [
        [0, *(node + 1 for node in outcome.accepted)][: len(outcome.new_token_ids)]
        for outcome in outcomes
    ]
    if all(outcome.target_top is not None for outcome in outcomes):
        tops = [
            outcome.target_top.of(rows)
            for outcome, rows in zip(outcomes, walked, strict=True)
            if outcome.target_top is not None
        ]
        return [RunProbs(top.probs[:, 0].tolist(), top) for top in tops]
    rows = [start + row for start, own in zip(logits.starts, walked, strict=True) for row in own]
    new = [token for outcome in outcomes for token in outcome.new_token_ids]
    where, columns = upload(logits.flat.device, rows, new)
    chosen = logits.flat[where]
    # A broken draft model may produce NaN or infinite logits.
    probs = chosen.float().softmax(-1).nan_to_num(0.0).gather(1, columns[:, None])[:, 0]
    own, token_ids, top_probs = fetch(probs, *topk_tokens(chosen, CHOICES))
    ends = accumulate(map(len, walked), initial=0)
    return [
        RunProbs(own[start:stop].tolist(), TopTokens(token_ids[start:stop], top_probs[start:stop]))
        for start, stop in pairwise(ends)
    ]
