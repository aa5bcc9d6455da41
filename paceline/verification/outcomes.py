"""Make outcomes of verified trees, and find rows whose logits are not numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from paceline.core.drafter import Outcome
from paceline.core.not_numbers import NO_TOKEN, take_token
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.sampling import sampler


def spoiled(tree: DraftTree, argmax: Sequence[int], node: int) -> bool:
    """Whether a draft tree may be why logits are not numbers: the token after a node (-1 = root) is
    asked for without it.

    Attention multiplies what it masks by 0, and NaN stays NaN: one such node spoils rows of other
    nodes.

    Args:
        argmax: the most likely token after the root and after every node.
    """
    return argmax[node + 1] == NO_TOKEN and len(tree) > 0


def make_outcome(
    request: Request,
    tree: DraftTree,
    accepted: list[int],
    run: list[int],
    argmax: list[int],
    logprobs: list[dict[int, float]] | None = None,
) -> Outcome:
    """Return an outcome, and note where its logits are not numbers.

    Args:
        argmax: the most likely token after the root and after every node; NO_TOKEN where the logits
            are not numbers.
        the others: as in `Outcome`.
    """
    unclean = NO_TOKEN in argmax
    if unclean:
        request.tainted = request.tainted or any(
            argmax[place] == NO_TOKEN for place in (0, *(node + 1 for node in accepted))
        )
        argmax = [max(token, 0) for token in argmax]
    return Outcome(request, tree, accepted, run, argmax, logprobs=logprobs, unclean=unclean)


def chosen(
    request: Request,
    tree: DraftTree,
    tokens: Sequence[int] | sampler.Draws,
    argmax: Sequence[int],
    dtype: torch.dtype,
) -> Callable[[int], int]:
    """Return what `follow` asks for the token after a node.

    Args:
        tokens, argmax: the chosen token and the most likely one after the root and after every
            node.
        dtype: of the logits.
    """
    return lambda node: (
        NO_TOKEN if spoiled(tree, argmax, node) else take_token(request, tokens[node + 1], dtype)
    )
