"""Prepare the tokens, target states and loss weights of text chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paceline.training.draft import settings
from paceline.training.draft.rows import Rows
from paceline.training.text_chunks import TextChunk


def loss_shares(rows: Rows, chunks: Sequence[TextChunk]) -> tuple[Tensor, Tensor]:
    """Find the rows that are not padding, and their weights in the loss.

    Args:
        rows: Rows of the forward pass. Every chunk has the same rows.
        chunks: The b chunks of the batch.
    Returns:
        A mask of the rows that are not padding, [b, rows], and the weights of the n rows that the
        mask selects, [n].
    """
    lengths, firsts = torch.tensor([(len(chunk), chunk.first) for chunk in chunks]).T[:, :, None]
    present = rows.positions < lengths
    weights = torch.tensor(settings.GUESS_WEIGHTS)[
        rows.guessed.clamp(max=len(settings.GUESS_WEIGHTS) - 1)
    ]
    in_prompt = rows.positions + 1 < firsts
    return present, torch.where(in_prompt, settings.PROMPT_WEIGHT * weights, weights)[present]


def padded(chunks: Sequence[TextChunk]) -> tuple[Tensor, Tensor]:
    """Pad text chunks to the same length t.

    Returns:
        Token ids [chunks, t] and target states [chunks, t, 1 + layers, hidden].
    """
    ids = [torch.from_numpy(chunk.token_ids).long() for chunk in chunks]
    states = [_states(chunk) for chunk in chunks]
    return pad_sequence(ids, batch_first=True), pad_sequence(states, batch_first=True)


def state_pairs(chunks: Sequence[TextChunk]) -> tuple[Tensor, Tensor, Tensor]:
    """Return n tokens of the chunks, with the target states before and after them.

    Returns:
        Three tensors. The first contains the token ids, [n]. The second contains the target states
        from which the tokens were chosen, flattened to [n, (1 + layers) * hidden]. The third
        contains the LM head's inputs after the tokens, [n, hidden].
    """
    tokens, before, after = [], [], []
    count = 0
    for chunk in chunks:
        states = _states(chunk)
        tokens.append(torch.from_numpy(chunk.token_ids[1:]).long())
        before.append(states[:-1].flatten(1).float())
        after.append(states[1:, 0].float())
        count += len(tokens[-1])
        if count >= settings.LEAST_SQUARES_PAIRS:
            break
    return torch.cat(tokens), torch.cat(before), torch.cat(after)


def least_squares(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Fit a linear map by ridge regression.

    Args:
        inputs: Inputs, [n, a].
        outputs: Outputs, [n, b].
    Returns:
        The linear map, [b, a].
    """
    square = inputs.T @ inputs
    square.diagonal().add_(settings.LEAST_SQUARES_RIDGE)
    solution: Tensor = torch.linalg.solve(square, inputs.T @ outputs)
    return solution.T


def _states(chunk: TextChunk) -> Tensor:
    assert chunk.states is not None, "read before the training"
    return chunk.states
