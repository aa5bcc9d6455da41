"""Arrange the rows of a forward pass that trains or evaluates an EAGLE model.

Each row of the forward pass stands for one position of a text and a number of guesses. A row with n
guesses treats the last n tokens, up to and including its position, as draft tokens. For example, at
position 5:

    no guesses      the target has chosen tokens 0 to 5
    two guesses     the target has chosen tokens 0 to 3, and tokens 4 and 5 are draft tokens

A row without guesses contains no draft tokens, so the model also reads the target states from
which the row's token was chosen. A row with guesses attends to what a draft model attends to in
decoding: tokens with target states, followed by draft tokens without target states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.model.forward_state import TargetStates


class Rows(NamedTuple):
    """The rows of one text in a forward pass of an EAGLE model.

    Attributes:
        positions: Position of each row in the text, [rows].
        guessed: Number of guesses n for each row, [rows]. The last n tokens, up to and including
            the row's position, are draft tokens.
        mask: Entry [i, j] is True if row i attends to row j, bool [rows, rows].
    """

    positions: Tensor
    guessed: Tensor
    mask: Tensor

    @staticmethod
    def of(positions: Tensor, guessed: Tensor) -> Rows:
        """Create rows from positions and numbers of guesses, and compute their mask."""
        roots = positions - guessed  # the newest token that the target has chosen
        sees_target = (guessed[None] == 0) & (positions[None] <= roots[:, None])
        sees_guesses = (
            (guessed[None] > 0)
            & (roots[None] == roots[:, None])
            & (positions[None] <= positions[:, None])
        )
        return Rows(positions, guessed, sees_target | sees_guesses)

    @staticmethod
    def for_training(length: int, chain: int, offset: int, first: int) -> Rows:
        """Create the rows for a training step.

        The first `length` rows are the positions of the text, without guesses. The other rows are
        the tokens of draft chains that start at regular intervals, with one row per draft token.

        Args:
            length: Number of tokens in the text.
            chain: Number of positions from the root of one draft chain to the next root.
            offset: Position of the first root.
            first: Position of the first token that may be a draft token.
        """
        positions = torch.arange(length)
        guessed = (positions - offset) % chain
        drafted = (guessed > 0) & (guessed <= positions - (first - 1))
        return Rows.of(
            torch.cat((positions, positions[drafted])),
            torch.cat((torch.zeros_like(positions), guessed[drafted])),
        )

    @staticmethod
    def for_evaluation(length: int, chain: int, first: int) -> Rows:
        """Create one row for each text position and each number of guesses.

        Args:
            length: Number of tokens in the text.
            chain: Number of draft tokens in a chain; rows have 0 to `chain` - 1 guesses.
            first: Position of the first token that may be a draft token.
        """
        positions = [
            torch.arange(length),
            *(torch.arange(first + guessed, length) for guessed in range(1, chain)),
        ]
        guessed = [torch.full_like(group, count) for count, group in enumerate(positions)]
        return Rows.of(torch.cat(positions), torch.cat(guessed))

    def with_drafts(self) -> Rows:
        """Return these rows, followed by a copy of each row that has guesses.

        No other row attends to a copy, so the caller can replace the copy's token with another
        draft token.
        """
        again = (self.guessed > 0).nonzero()[:, 0]
        count, added = len(self.positions), len(again)
        mask = torch.zeros(count + added, count + added, dtype=torch.bool)
        mask[:count, :count] = self.mask
        mask[count:, :count] = self.mask[again]
        mask[count + torch.arange(added), again] = False
        mask[count:, count:] = torch.eye(added, dtype=torch.bool)
        return Rows(
            torch.cat((self.positions, self.positions[again])),
            torch.cat((self.guessed, self.guessed[again])),
            mask,
        )


def hidden_of_rows(
    embedding: Callable[..., Tensor],
    decoder: Callable[..., Any],
    token_ids: Tensor,
    chosen_by: Tensor,
    rows: Rows,
    unread: int = 0,
    drafted: Tensor | None = None,
) -> Tensor:
    """Run a draft model; return its LM head's input for each row, [b, rows, hidden].

    All tensors except those in `rows` must be on the decoder's device.

    Args:
        embedding: The draft model's input embedding, or a function with the same signature.
        decoder: The draft model's decoder, or a function with the same signature.
        token_ids: Token ids of b texts with t tokens each, [b, t].
        chosen_by: For each token, the target states from which the token was chosen,
            [b, t, 1 + layers, hidden].
        rows: Rows to compute; the same rows for each text.
        unread: Number of tokens at the start of each text whose target states are not read.
        drafted: Token ids that replace the text's tokens in the last n rows, [b, n]. Default: the
            text's tokens remain.
    """
    texts, device = len(token_ids), token_ids.device
    readers = ((rows.guessed == 0) & (rows.positions > max(0, unread - 1))).nonzero()[:, 0]
    text_index = torch.arange(texts).repeat_interleave(len(readers))
    state_index = torch.stack((text_index, readers.repeat(texts))).to(device)
    positions, read_positions = rows.positions.to(device), rows.positions[readers].to(device)
    ids = token_ids[:, positions]
    if drafted is not None:
        ids = torch.cat((ids[:, : ids.shape[1] - drafted.shape[1]], drafted), dim=1)
    states = TargetStates(state_index, chosen_by[:, read_positions].flatten(0, 1))
    inputs: dict[str, Any] = {
        "inputs_embeds": embedding(ids, states),
        "position_ids": positions.expand(texts, -1),
        "attention_mask": rows.mask.to(device)[None, None].expand(texts, -1, -1, -1),
        "use_cache": False,
    }
    hidden: Tensor = decoder(**inputs).last_hidden_state
    return hidden


def shifted(states: Tensor) -> Tensor:
    """Return the states from which each token was chosen; zeros for the first token.

    Args:
        states: Target states after each token, [b, t, ...].
    """
    return torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)
