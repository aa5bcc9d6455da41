"""Handle invalid logits: rows with a NaN or with an infinite maximum.

Functions that choose tokens return `NO_TOKEN` for such a row. The host receives this mark with the
tokens, so no separate check has to wait for the device. A single logit of -inf is valid: -inf marks
vocabulary padding or a banned token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.errors import LogitsError

NO_TOKEN = -1

_ADVICE = {
    torch.float16: "float16 overflows beyond 65504: load the model with"
    " \0dtype='bfloat16'\0 or \0dtype='float32'\0.",
    torch.bfloat16: (
        "Load the model with \0dtype='float32'\0; if the error persists, the checkpoint is damaged."
    ),
}
_OTHERWISE = (
    "If the weights are in float16, load them with \0dtype='bfloat16'\0 or \0dtype='float32'\0;"
    " otherwise, the checkpoint is damaged."
)


def marked_argmax(scores: Tensor) -> Tensor:
    """Return `scores.argmax(-1)`, with NO_TOKEN for rows with invalid logits.

    Args:
        scores: Logits, [..., vocab].
    """
    best = scores.argmax(-1, keepdim=True)
    return torch.where(scores.gather(-1, best).isfinite(), best, NO_TOKEN).squeeze(-1)


def logits_error(dtype: torch.dtype) -> LogitsError:
    """Return the error that ends a request whose logits are NaN or infinite.

    Args:
        dtype: Data type of the logits.
    """
    name = str(dtype).removeprefix("torch.")
    return LogitsError(
        f"got logits in {name} that are not numbers (NaN or infinite) from the model; expected"
        f" finite ones. {_ADVICE.get(dtype, _OTHERWISE)}"
    )


def take_token(request: Request, token: int, dtype: torch.dtype) -> int:
    """Return the token chosen for a request; NO_TOKEN becomes 0 and ends the request.

    Args:
        request: Request that receives the token. If the token is NO_TOKEN, the function sets the
            request's `failure`.
        token: Chosen token, or NO_TOKEN if the logits were invalid.
        dtype: Data type of the logits.
    """
    if token != NO_TOKEN:
        return token
    request.failure = request.failure or logits_error(dtype)
    return 0


def guess_tokens(requests: Sequence[Request], drawn: list[list[int]]) -> list[list[int]]:
    """Replace NO_TOKEN in a draft model's output with the valid token id 0.

    Args:
        requests: The draft model's copies of the requests. The function sets `tainted` in each
            copy whose tokens contain NO_TOKEN.
        drawn: Tokens that the draft model chose for each request.
    """
    for row, (request, tokens) in enumerate(zip(requests, drawn, strict=True)):
        if NO_TOKEN in tokens:
            request.tainted = True
            drawn[row] = [max(token, 0) for token in tokens]
    return drawn
