"""Cross-entropy with what the target says at each place, without ever holding the logits of all
places.

Either its few likeliest tokens there are known, or its state, of which its head makes all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 256  # places whose logits are held at a time, so that they stay in the processor's cache


class _Loss(torch.autograd.Function):
    """The gradients are worked out with the value, while the logits are at hand: a third of the
    time of autograd's own way.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, probs: Tensor) -> Tensor:
        """Return the mean loss."""
        of_hidden, of_weight, total = (
            torch.empty_like(hidden),
            torch.zeros_like(weight),
            hidden.new_zeros(()),
        )
        parts = zip(
            *(torch.split(one, _ROWS) for one in (hidden, of_hidden, targets, probs)), strict=True
        )
        for states, gradient, target, prob in parts:
            logits = states @ weight.T
            total -= (prob * logits.gather(1, target)).sum()
            highest = logits.amax(1, keepdim=True)
            sums = logits.sub_(highest).exp_().sum(1, keepdim=True)
            total += (sums.log() + highest).sum()
            logits.div_(sums).scatter_add_(1, target, -prob)
            torch.mm(logits, weight, out=gradient)
            of_weight.addmm_(logits.T, states)
        ctx.save_for_backward(of_hidden.div_(len(hidden)), of_weight.div_(len(hidden)))
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Scale what `forward` has worked out."""
        of_hidden, of_weight = ctx.saved_tensors
        return gradients[0] * of_hidden, gradients[0] * of_weight, None, None


def distillation_loss(hidden: Tensor, weight: Tensor, targets: Tensor, probs: Tensor) -> Tensor:
    """Return the mean cross-entropy of softmax(hidden @ weight.T) against `probs`, in nats.

    Args:
        hidden: [n, d]. weight: [vocab, d].
        targets: [n, k], tokens. probs: [n, k], their probabilities, which add up to 1; a token may
            come twice with a share each.
    """
    loss: Tensor = _Loss.apply(hidden, weight, targets, probs)  # type: ignore[no-untyped-call]
    return loss


class _StatesLoss(torch.autograd.Function):
    """As `_Loss`; the head is the target's own, and is not learnt."""

    @staticmethod
    def forward(
        ctx: Any, made: Tensor, states: Tensor, weight: Tensor, bias: Tensor, shares: Tensor
    ) -> Tensor:
        """Return the loss."""
        gradient, total = (
            torch.empty_like(made, dtype=torch.float32),
            made.new_zeros((), dtype=torch.float32),
        )
        for mine, theirs, share, out in zip(
            *(torch.split(one, _ROWS) for one in (made, states, shares, gradient)), strict=True
        ):
            logits, said = (
                torch.nn.functional.linear(one.to(weight.dtype), weight, bias).float()
                for one in (mine, theirs)
            )
            probs = said.softmax(1)
            log_probs = logits.log_softmax(1)
            total -= ((probs * log_probs).sum(1) * share).sum()
            difference = log_probs.exp_().sub_(probs).mul_(share[:, None])
            out.copy_(difference.to(weight.dtype) @ weight)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Scale what `forward` has worked out."""
        return gradients[0] * ctx.saved_tensors[0], None, None, None, None


def states_loss(
    made: Tensor, states: Tensor, weight: Tensor, bias: Tensor, shares: Tensor
) -> Tensor:
    """Return the weighted cross-entropy, in nats, of what a head says of states with what it says
    of the target's.

    Args:
        made, states: [n, d], the draft's and the target's. weight: [vocab, d], bias: [vocab], of
            the head; products are made in their dtype. shares: float32 [n], of each place in the
            loss.
    """
    loss: Tensor = _StatesLoss.apply(made, states, weight, bias, shares)  # type: ignore[no-untyped-call]
    return loss
