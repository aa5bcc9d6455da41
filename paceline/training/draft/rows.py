"""The rows of a forward in which a draft that reads states learns, or is judged: each place of a
text, seen from several roots.

A row is a place and how many tokens up to there are the draft's own guesses. With none, the target
has said everything so far, and the row reads the state of its token; else it sees what a draft
sees: the target's tokens before the guesses, and these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.model.forward_state import TargetStates


class Rows(NamedTuple):
    """Rows of one text.

    Attributes:
        places: [rows], in the text. guessed: [rows], tokens up to there that are guesses; 0 = none.
        mask: bool [rows, rows], which row sees which.
    """

    places: Tensor
    guessed: Tensor
    mask: Tensor

    @staticmethod
    def of(places: Tensor, guessed: Tensor) -> Rows:
        """Work out what they see."""
        roots = places - guessed  # the newest token that the target has said
        said = (guessed[None] == 0) & (places[None] <= roots[:, None])
        own = (
            (guessed[None] > 0)
            & (roots[None] == roots[:, None])
            & (places[None] <= places[:, None])
        )
        return Rows(places, guessed, said | own)

    @staticmethod
    def learnt(length: int, chain: int, offset: int, first: int) -> Rows:
        """Every place as it is after the target, and all but each `chain`-th, from `offset` on, as
        a guess behind that one.

        Args:
            first: the first token that is guessed, at the earliest.
        """
        places = torch.arange(length)
        guessed = (places - offset) % chain
        behind = (guessed > 0) & (guessed <= places - (first - 1))
        return Rows.of(
            torch.cat((places, places[behind])),
            torch.cat((torch.zeros_like(places), guessed[behind])),
        )

    @staticmethod
    def judged(length: int, chain: int, first: int) -> Rows:
        """Every place as it is after the target, and in each further place of a chain behind
        tokens from `first` on.
        """
        places = [
            torch.arange(length),
            *(torch.arange(first + guessed, length) for guessed in range(1, chain)),
        ]
        return Rows.of(
            torch.cat(places),
            torch.cat([torch.full_like(one, guessed) for guessed, one in enumerate(places)]),
        )

    def with_drafts(self) -> Rows:
        """The same, and behind them each guess once more, where a drafted token takes its place
        and is seen by no other.
        """
        again = (self.guessed > 0).nonzero()[:, 0]
        count, more = len(self.places), len(again)
        mask = torch.zeros(count + more, count + more, dtype=torch.bool)
        mask[:count, :count] = self.mask
        mask[count:, :count] = self.mask[again]
        mask[count + torch.arange(more), again] = False
        mask[count:, count:] = torch.eye(more, dtype=torch.bool)
        return Rows(
            torch.cat((self.places, self.places[again])),
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
    """Return what the draft's LM head reads behind each row, [b, rows, hidden], on the device of
    `token_ids`.

    Args:
        embedding, decoder: the draft's, or what does as they do.
        token_ids: [b, t], on the decoder's device, as all tensors but `rows` are.
        chosen_by: [b, t, 1 + layers, states], the target's states that each token was chosen by.
        unread: of so many first tokens no state is read.
        drafted: [b, n], tokens of the last n rows in place of the text's.
    """
    texts, device = len(token_ids), token_ids.device
    where = ((rows.guessed == 0) & (rows.places > max(0, unread - 1))).nonzero()[:, 0]
    at = torch.stack((torch.arange(texts).repeat_interleave(len(where)), where.repeat(texts))).to(
        device
    )
    places, read = rows.places.to(device), rows.places[where].to(device)
    ids = token_ids[:, places]
    if drafted is not None:
        ids = torch.cat((ids[:, : ids.shape[1] - drafted.shape[1]], drafted), dim=1)
    inputs: dict[str, Any] = {
        "inputs_embeds": embedding(ids, TargetStates(at, chosen_by[:, read].flatten(0, 1))),
        "position_ids": places.expand(texts, -1),
        "attention_mask": rows.mask.to(device)[None, None].expand(texts, -1, -1, -1),
        "use_cache": False,
    }
    hidden: Tensor = decoder(**inputs).last_hidden_state
    return hidden


def shifted(states: Tensor) -> Tensor:
    """Return the states that each token was chosen by, of [b, t, ...] after each token; zeros
    for the first.
    """
    return torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)
