"""Compute the expected accepted tokens per chain from single-token acceptance.

While a chain is accepted, its context is the target's text. The draft's predictions along that text
therefore decide the fate of every chain. This is exact for greedy answers, and the expected value
under rejection sampling for sampled ones. A draft that reads target states also depends on the
position in the chain, since it has no states of its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chains:
    """What became of chains of K tokens.

    Attributes:
        chains: how many there were, expected.
        accepted: expected tokens accepted, by their place in a chain: [K].
        agreed, places: sum of the acceptance probabilities of single tokens, and of how many.
    """

    chains: float
    accepted: tuple[float, ...]
    agreed: float
    places: int

    @property
    def per_chain(self) -> float:
        """Expected accepted tokens per chain."""
        return sum(self.accepted) / max(self.chains, 1e-9)

    @property
    def agreement(self) -> float:
        """Mean acceptance probability of a single token."""
        return self.agreed / max(self.places, 1)

    @property
    def by_position(self) -> list[float]:
        """Chance that a token in that place of a chain is accepted, all before it being
        accepted.
        """
        reached = [self.chains, *self.accepted[:-1]]
        return [
            there / before if before else 0.0
            for there, before in zip(self.accepted, reached, strict=True)
        ]


def expected_chains(
    answers: Iterable[Sequence[float] | NDArray[np.float64]], length: int
) -> Chains:
    """Return what becomes of chains of `length` along answers, each begun where the one before
    ended.

    Args:
        answers: of every token of an answer, the probability that the draft's token there is
            accepted, [tokens]; or by its place in a chain, [places, tokens], the last of which
            counts for later ones. The first token comes with the prompt, and no chain drafts it;
            behind a chain the target adds a token of its own.
    """
    chains = agreed = 0.0
    places, accepted = 0, np.zeros(length)
    for answer in answers:
        by_place = np.atleast_2d(np.asarray(answer, dtype=np.float64))
        count = by_place.shape[1]
        agreed, places = agreed + float(by_place[0, 1:].sum()), places + max(0, count - 1)
        begun = np.zeros(count + length + 1)
        begun[1] = 1.0
        for start in range(1, count):
            here = reached = float(begun[start])
            if not here:
                continue
            chains += here
            for place in range(length):
                at = start + place
                kept = reached * (
                    float(by_place[min(place, len(by_place) - 1), at]) if at < count else 0.0
                )
                accepted[place] += kept
                begun[at + 1] += reached - kept
                reached = kept
            begun[start + length + 1] += reached
    return Chains(chains, tuple(accepted.tolist()), agreed, places)
