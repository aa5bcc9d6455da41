"""Select the tokens that a draft forward pass adds to each chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from paceline.core.origin import Origin
from paceline.core.tree import DraftTree, IntArray
from paceline.drafters.shared.chain import Chain
from paceline.drafters.shared.drawn_tokens import DrawnRows, NewTokens
from paceline.drafters.shared.length_rules import LengthRule
from paceline.util.device_copies import Arrays, upload
from paceline.verification.rules import follow


class DraftStep(NamedTuple):
    """The outcome of a draft forward pass for one chain.

    Attributes:
        looked_up: Nodes with tokens from prompt lookup that the draft model confirmed.
        run: New tokens from the draft model; at least one.
    """

    looked_up: list[int]
    run: list[int]


def chain_tree(
    chain: Chain, confidence: list[float] | None = None, leaf_first: bool = False
) -> DraftTree:
    """Convert a drafted chain to a draft tree, with distributions if it was sampled.

    Args:
        chain: Drafted chain.
        confidence: Confidence of each token; None for a tree without confidences.
        leaf_first: Whether the engine verifies the chain from the last token to the first.
    """
    origins, probs = [Origin.MODEL] * len(chain.tokens), chain.probs if chain.draws else None
    return DraftTree.chain(chain.tokens, probs, confidence, origins, leaf_first)


def follow_text(guess: DraftTree, drawn: list[int], chain: Chain) -> DraftStep:
    """Accept looked-up tokens up to the first one that the draft model does not draw.

    The new tokens of the chain are those that the draft model draws. For example, prompt lookup has
    found the tokens 5 6 7, and the draft model draws 5 6 8. The looked-up tokens 5 and 6 are
    accepted, and the new tokens are 5 6 8.

    Args:
        guess: Tokens from prompt lookup, as a chain.
        drawn: Token that the draft model draws after the root and after each node of `guess`.
        chain: Chain to extend; its remaining length limits the new tokens.
    """
    return DraftStep(
        *follow(guess, lambda node: drawn[node + 1], lambda run: len(run) >= chain.room)
    )


class OpenRows:
    """Selects the data of unfinished chains from one draft forward pass.

    Args:
        chains: All chains of the batch.
        rule: Length rule, which decides when a chain is finished.
    Attributes:
        rows: Indices of the unfinished chains in `chains`.
    """

    def __init__(self, chains: Sequence[Chain], rule: LengthRule) -> None:
        self.rows = [row for row, chain in enumerate(chains) if chain.open]
        self._chains, self._rule = chains, rule

    def figures(self, scores: Tensor, tokens: Tensor, hidden: Tensor | None) -> list[Tensor]:
        """Compute statistics of the drawn tokens for the length rule.

        The resulting tensors stay on the device.

        Args:
            scores: Next-token scores after the root and after each token from prompt lookup,
                [batch, 1 + width, vocab or reduced].
            tokens: For each position, the column of the drawn token in `scores`, [batch, 1 +
                width].
            hidden: Hidden states, [batch, 1 + width, hidden], if the rule needs them.
        """
        if not self._rule.checks_tokens:
            return []
        if len(self.rows) < len(self._chains):
            (which,) = upload(scores.device, self.rows)
            scores, tokens = scores[which], tokens[which]
            hidden = None if hidden is None else hidden[which]
        chains = [self._chains[row] for row in self.rows]
        return self._rule.figures(DrawnRows(chains, scores, tokens, hidden))

    def new_tokens(
        self, runs: list[list[int]], figures: Arrays, vocabulary: IntArray | None
    ) -> NewTokens:
        """Return the new tokens of the unfinished chains, with their statistics.

        Args:
            runs: New tokens of every chain in the batch.
            figures: Statistics that the method `figures` returned, copied to the host.
            vocabulary: Token ids of the reduced vocabulary; None means the whole vocabulary.
        """
        own = [runs[row] for row in self.rows]
        if figures and figures[0].shape[1] == 1:
            figures = [figure[:, 0] for figure in figures]
        elif figures:
            # The looked-up tokens form a chain, so the new tokens are at its first positions.
            rows = np.repeat(np.arange(len(own)), [len(run) for run in own])
            columns = [column for run in own for column in range(len(run))]
            figures = [figure[rows, columns] for figure in figures]
        return NewTokens([self._chains[row] for row in self.rows], own, figures, vocabulary)

    def distributions(self, runs: list[list[int]], scores: Tensor) -> Tensor | None:
        """Return the distribution of each new token in unfinished chains, [n, vocab].

        Args:
            runs: New tokens of every chain in the batch.
            scores: Scores that were passed to `figures`, [batch, 1 + width, vocab].
        Returns:
            The distributions; None if no unfinished chain is sampled.
        """
        if not any(self._chains[row].draws for row in self.rows):
            return None
        if scores.shape[1] == 1 and len(self.rows) == len(self._chains):
            return scores[:, 0].softmax(-1)
        rows = np.repeat(self.rows, [len(runs[row]) for row in self.rows])
        columns = np.concatenate([np.arange(len(runs[row])) for row in self.rows])
        row_index, column_index = upload(scores.device, rows, columns)
        return scores[row_index, column_index].softmax(-1)
