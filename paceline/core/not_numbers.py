"""Logits that are not numbers: a row that holds NaN, or whose largest value is infinite.

Functions that choose a token mark such a row by `NO_TOKEN`, so that no device is synchronised for
it. -inf for single tokens is a number here: vocabularies are padded with it, and options forbid
tokens by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.errors import LogitsError

NO_TOKEN = -1

_ADVICE = {
    torch.float16: "float16 overflows beyond 65504: load the model with dtype='bfloat16' or"
    " dtype='float32'.",
    torch.bfloat16: "Load the model with dtype='float32'; if they stay, its checkpoint is damaged.",
}
_OTHERWISE = (
    "Where the weights are in float16, load them with dtype='bfloat16' or dtype='float32'; else"
    " the checkpoint is damaged."
)


def marked_argmax(scores: Tensor) -> Tensor:
    """Return `scores.argmax(-1)`, NO_TOKEN for rows that are not numbers.

    Args:
        scores: [..., vocab].
    """
    found = scores.argmax(-1, keepdim=True)
    return torch.where(scores.gather(-1, found).isfinite(), found, NO_TOKEN).squeeze(-1)


def logits_error(dtype: torch.dtype) -> LogitsError:
    """Return what a request ends with whose logits are not numbers.

    Args:
        dtype: of the logits.
    """
    name = str(dtype).removeprefix("torch.")
    return LogitsError(
        f"got logits in {name} that are not numbers (NaN or infinite) from the model; expected"
        f" finite ones. {_ADVICE.get(dtype, _OTHERWISE)}"
    )


def take_token(request: Request, token: int, dtype: torch.dtype) -> int:
    """Return the token chosen for a sequence; NO_TOKEN ends its request, and 0 stands for the token
    until then.

    Args:
        dtype: of the logits.
    """
    if token != NO_TOKEN:
        return token
    request.failure = request.failure or logits_error(dtype)
    return 0


def guess_tokens(requests: Sequence[Request], drawn: list[list[int]]) -> list[list[int]]:
    """Return the tokens that a draft model chooses: 0, a wrong guess, where its logits are not
    numbers.

    Args:
        requests: The copies of the requests that the draft model decodes.
        drawn: the tokens of each.
    """
    for row, (request, tokens) in enumerate(zip(requests, drawn, strict=True)):
        if NO_TOKEN in tokens:
            request.tainted = True
            drawn[row] = [max(token, 0) for token in tokens]
    return drawn
