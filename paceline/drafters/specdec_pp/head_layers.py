"""Evaluate the layers of an acceptance head, and check their tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from paceline.drafters.specdec_pp.card import HELP, INPUTS, SCALARS, HeadCard
from paceline.drafters.specdec_pp.settings import MAX_BLOCKS, MIN_OTHER_SHARE
from paceline.errors import ConfigError

REJECTED, ACCEPTED = 0, 1  # classes of the last layer, in the public code's order


def accept_logits(
    blocks: Sequence[tuple[Tensor, Tensor]], last: Tensor, bias: Tensor, hidden: Tensor
) -> Tensor:
    """Return the logit of "accepted" minus the logit of "rejected" for hidden states.

    The result includes only the contribution of the hidden states. The caller adds the contribution
    of the scalar inputs (`scalars_of`).

    Args:
        blocks: Weight [hidden, hidden] and bias [hidden] of each residual block.
        last: Weights of the last layer for "accepted" minus those for "rejected", [hidden].
        bias: Bias of the last layer for "accepted" minus that for "rejected"; a scalar tensor.
        hidden: Hidden states, [n, hidden].
    Returns:
        One difference of logits per hidden state, [n].
    """
    for weight, offset in blocks:
        hidden = hidden + functional.silu(functional.linear(hidden, weight, offset))
    return torch.addmv(bias, hidden, last)


def scalars_of(log_probs: Tensor, entropies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scalar inputs to the last layer, each [n].

    They are the log-probability, the log of 1 - probability, and the entropy. The first two form
    the log-odds, which distinguish 0.99 from 0.9999 better than the log-probability alone.

    Args:
        log_probs: Log-probability of each token, [n].
        entropies: Entropy of each token's distribution in nats, [n].
    """
    return log_probs, torch.expm1(log_probs).neg_().clamp_(min=MIN_OTHER_SHARE).log_(), entropies


def check_tensors(card: HeadCard, tensors: dict[str, Tensor]) -> None:
    """Reject tensors that do not match the head's card.

    Raises:
        ConfigError: Inputs, depth, names, shapes or data types differ.
    """
    if card.inputs not in INPUTS:
        raise ConfigError(
            f"head: got inputs {', '.join(card.inputs)}; expected"
            f" {' or '.join(map(', '.join, INPUTS))}. {HELP}"
        )
    if len(card.prior) not in (0, len(SCALARS) + 1):
        raise ConfigError(
            f"head: got a prior of {len(card.prior)} weights; expected none or {len(SCALARS) + 1}."
            f" {HELP}"
        )
    if not 0 <= card.depth <= MAX_BLOCKS:
        raise ConfigError(
            f"head: got depth {card.depth}; expected 0 to {MAX_BLOCKS} residual blocks. {HELP}"
        )
    num_blocks = sum(name.startswith("blocks.") and name.endswith(".weight") for name in tensors)
    if num_blocks != card.depth:
        raise ConfigError(
            f"head: got a file with {num_blocks} residual blocks; expected {card.depth}, the"
            f" depth in its card. {HELP}"
        )
    hidden = card.hidden_size
    shapes = {"last.weight": (2, hidden + len(card.inputs) - 1), "last.bias": (2,)}
    for block in range(card.depth):
        shapes |= {f"blocks.{block}.weight": (hidden, hidden), f"blocks.{block}.bias": (hidden,)}
    for name in shapes.keys() | tensors.keys():
        got = tuple(tensors[name].shape) if name in tensors else "missing"
        if name not in shapes or got != shapes[name] or tensors[name].dtype != torch.float32:
            dtype = tensors[name].dtype if name in tensors else ""
            raise ConfigError(
                f"head: got tensor {name!r} {got} {dtype}; expected {shapes.get(name, 'none')}"
                f" torch.float32 by its card. {HELP}"
            )
