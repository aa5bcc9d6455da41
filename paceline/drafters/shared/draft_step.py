"""Turn the result of one draft forward pass into new tokens of chains."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from paceline.core.origin import Origin
from paceline.core.tree import DraftTree, IntArray
from paceline.drafters.shared.chain import Chain, NewTokens
from paceline.verification.rules import follow


class DraftStep(NamedTuple):
    """Hold one chain's part of a draft forward pass.

    Attributes:
        looked_up: Nodes of the looked-up text that the draft model agrees with.
        run: New tokens by the draft model, one or more.
    """

    looked_up: list[int]
    run: list[int]


def chain_tree(chain: Chain, confidence: list[float] | None = None) -> DraftTree:
    """Return a chain as a draft tree, with distributions if it was sampled."""
    origins = [Origin.MODEL] * len(chain.tokens)
    return DraftTree.chain(chain.tokens, chain.probs if chain.draws else None, confidence, origins)


def follow_text(guess: DraftTree, drawn: list[int], chain: Chain) -> DraftStep:
    """Follow the draft model's tokens through the looked-up text.

    Args:
        guess: Looked-up text.
        drawn: The draft model's token after the root and after each node of `guess`.
        chain: Chain to extend.
    """
    return DraftStep(
        *follow(guess, lambda node: drawn[node + 1], lambda run: len(run) >= chain.room)
    )


def gather_new_tokens(
    rows: list[int],
    chains: list[Chain],
    steps: list[DraftStep],
    scores: Tensor,
    hidden: Tensor | None,
    vocabulary: IntArray | None,
) -> NewTokens:
    """Gather the new tokens of the open chains `rows` with their scores.

    Args:
        rows: Rows of the open chains.
        chains: All chains.
        steps: The draft model's tokens per chain.
        scores: Scores of all chains, as in `ChainDrafter._extend`.
        hidden: Hidden states of all chains.
        vocabulary: Ids of a reduced vocabulary.
    """
    runs = [steps[row].run for row in rows]
    where: tuple[Any, Any]
    if scores.shape[1] == 1:
        where = (rows, 0) if len(rows) < len(chains) else (slice(None), 0)
    else:
        columns = [
            column
            for row in rows
            for column in [0, *(node + 1 for node in steps[row].looked_up)][: len(steps[row].run)]
        ]
        where = ([row for row, run in zip(rows, runs, strict=True) for _ in run], columns)
    return NewTokens(
        [chains[row] for row in rows],
        runs,
        scores[where],
        None if hidden is None else hidden[where],
        vocabulary,
    )
