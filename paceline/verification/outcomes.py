"""Build the outcomes of verified trees, and detect NaN or infinite logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from paceline.core.drafter import Outcome, TopTokens
from paceline.core.not_numbers import NO_TOKEN, take_token
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.sampling import sampler


def draft_may_cause_nan(tree: DraftTree, argmax: Sequence[int], node: int) -> bool:
    """Return whether a draft tree may have caused NaN or infinite logits at a node.

    Attention multiplies masked values by 0. NaN times 0 is NaN, so a node with NaN values corrupts
    the rows of other nodes. If a tree may have caused NaN, the engine runs the request again
    without the tree.

    Args:
        tree: Verified draft tree.
        argmax: Most likely token after the root and each node; NO_TOKEN if the logits are NaN or
            infinite.
        node: Node after which a token is chosen; -1 means the root.
    """
    return argmax[node + 1] == NO_TOKEN and len(tree) > 0


def make_outcome(
    request: Request,
    tree: DraftTree,
    accepted: list[int],
    run: list[int],
    argmax: list[int],
    top: TopTokens | None = None,
) -> Outcome:
    """Build a request's outcome, and record whether logits were NaN or infinite.

    Args:
        request: Verified request.
        tree: Verified draft tree.
        accepted: Accepted nodes.
        run: New tokens of the request.
        argmax: Most likely token after the root and each node; NO_TOKEN if the logits are NaN or
            infinite.
        top: Most likely tokens after the root and each node, if requested; default None.
    """
    unclean = NO_TOKEN in argmax
    if unclean:
        request.tainted = request.tainted or any(
            argmax[row] == NO_TOKEN for row in (0, *(node + 1 for node in accepted))
        )
        argmax = [max(token, 0) for token in argmax]
    return Outcome(request, tree, accepted, run, argmax, top, unclean=unclean)


def token_chooser(
    request: Request,
    tree: DraftTree,
    tokens: Sequence[int] | sampler.LazyDraws,
    argmax: Sequence[int],
    dtype: torch.dtype,
) -> Callable[[int], int]:
    """Return a function for `follow` that returns the target's token after a node.

    Args:
        request: Request being verified.
        tree: Draft tree of the request.
        tokens: Token that the target chooses after the root and after every node.
        argmax: Most likely token after the root and after every node.
        dtype: Data type of the logits, for error messages.
    """
    if tokens is argmax and NO_TOKEN not in argmax:
        return lambda node: argmax[node + 1]
    return lambda node: (
        NO_TOKEN
        if draft_may_cause_nan(tree, argmax, node)
        else take_token(request, tokens[node + 1], dtype)
    )
