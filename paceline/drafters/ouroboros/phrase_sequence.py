"""Build a request's draft from phrases, in the draft model's cache (Ouroboros).

A phrase is a short sequence of tokens that the drafter takes from a pool.
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
    """The draft model's probabilities for a run of tokens.

    Attributes:
        own: Probability of each token.
        top: Most likely tokens at the positions of the run.
    """

    own: list[float]
    top: TopTokens


@dataclass(slots=True)
class PhraseSequence(DraftSequence):
    """A request in the draft model's KV cache, with a draft that consists of phrases.

    Attributes:
        pool: Phrase pool that this request uses.
        pooled_tokens: Number of target tokens in the pool.
        goal: Intended length of the current draft, in tokens.
        reach: Maximum draft length with the draft budget; slightly larger than the number of nodes
            that the engine verifies.
        prob: Probability of the draft so far, according to the draft model.
        probs: Probability of each token given the preceding tokens.
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
        """Return whether drafting continues; an end-of-sequence token ends it."""
        return len(self.request) - self.agreed < self.goal and self.request.finish_reason is None

    def note_processed(self, count: int) -> None:
        """Adjust the maximum length of later drafts.

        Args:
            count: Number of nodes of the last chain that were verified.
        """
        uncut = count == len(self.proposal.chain)
        self.reach = max(count, self.reach) + 1 if uncut else max(MIN_REACH, count + 1)

    def begin(self) -> None:
        """Start an empty draft."""
        self.prob, self.probs, self.alternatives = 1.0, [], []

    def note_probs(self, run: list[int], probs: RunProbs) -> None:
        """Record the probabilities of the next tokens and their alternatives.

        Args:
            run: Tokens about to be added to the draft.
            probs: Probabilities at the tokens' positions.
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
    """Return the draft model's probabilities of the new tokens.

    Args:
        outcomes: Outcomes of the draft model, each with new tokens.
        logits: Logits from which the tokens were chosen, with rows in the order of `outcomes`.
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
