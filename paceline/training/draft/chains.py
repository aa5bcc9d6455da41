"""Compute the expected number of accepted tokens per chain of draft tokens.

The input is the acceptance probability of a draft token at each position of an answer. One
probability per position is sufficient, because a draft token matters only if the target has
accepted all earlier draft tokens. If the target has accepted them, the text before the draft token
equals the answer. If a draft model reads target states, acceptance also depends on the position in
the chain, because draft tokens have no target states.

For greedy answers, the result is exact. For sampled answers, the result is the expected value under
rejection sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chains:
    """Expected numbers of accepted tokens, for chains of K draft tokens.

    Attributes:
        chains: Expected number of draft chains in all answers.
        accepted: Expected number of accepted tokens at each chain position, [K].
        agreed: Acceptance probability at the start of a chain, summed over all answer tokens except
            the first token of each answer.
        places: Number of answer tokens in this sum.
    """

    chains: float
    accepted: tuple[float, ...]
    agreed: float
    places: int

    @property
    def per_chain(self) -> float:
        """Return the expected number of accepted tokens per chain."""
        return sum(self.accepted) / max(self.chains, 1e-9)

    @property
    def agreement(self) -> float:
        """Return the mean acceptance probability of a token at the start of a chain."""
        return self.agreed / max(self.places, 1)

    @property
    def by_position(self) -> list[float]:
        """Return the acceptance rate at each chain position, given that it is reached."""
        reached = [self.chains, *self.accepted[:-1]]
        return [
            accepted / before if before else 0.0
            for accepted, before in zip(self.accepted, reached, strict=True)
        ]


def expected_chains(
    answers: Iterable[Sequence[float] | NDArray[np.float64]], length: int
) -> Chains:
    """Compute how many draft tokens the target is expected to accept in all answers.

    In each answer, prefill generates the first token. The drafter then drafts one chain after
    another until the answer ends, and the target adds a token after the accepted part of each
    chain.

    Args:
        answers: For each answer, the acceptance probability of a draft token at each position of
            the answer, [tokens]. If the probability also depends on the position in the chain, the
            shape is [chain positions, tokens]; the last row also applies to later chain positions.
        length: Number of draft tokens per chain.
    """
    chains = agreed = 0.0
    num_tokens, accepted = 0, np.zeros(length)
    for answer in answers:
        rates = np.atleast_2d(np.asarray(answer, dtype=np.float64))
        count = rates.shape[1]
        agreed, num_tokens = agreed + float(rates[0, 1:].sum()), num_tokens + max(0, count - 1)
        # Probability that a chain begins at each token of the answer.
        begun = np.zeros(count + length + 1)
        begun[1] = 1.0
        for start in range(1, count):
            reached = float(begun[start])
            if not reached:
                continue
            chains += reached
            for step in range(length):
                token = start + step
                rate = float(rates[min(step, len(rates) - 1), token]) if token < count else 0.0
                survived = reached * rate
                accepted[step] += survived
                begun[token + 1] += reached - survived
                reached = survived
            begun[start + length + 1] += reached
    return Chains(chains, tuple(accepted.tolist()), agreed, num_tokens)
