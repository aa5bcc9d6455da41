"""Compute the cross-entropy against the target, one block of positions at a time.

There are two losses. `distillation_loss` receives the target's most likely tokens and their
probabilities. `states_loss` receives the target's hidden states, from which the LM head computes
the full distribution. Both losses compute their gradients in the forward pass, while the logits are
available. Autograd would take three times as long as this method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.training.draft.settings import LOSS_ROWS


class _DistillationLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, probs: Tensor) -> Tensor:
        """Return the mean loss, and store its gradients for the backward pass."""
        hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        parts = (torch.split(rows, LOSS_ROWS) for rows in (hidden, hidden_gradient, targets, probs))
        for states, gradient, target, prob in zip(*parts, strict=True):
            logits = states @ weight.T
            total -= (prob * logits.gather(1, target)).sum()
            highest = logits.amax(1, keepdim=True)
            sums = logits.sub_(highest).exp_().sum(1, keepdim=True)
            total += (sums.log() + highest).sum()
            logits.div_(sums).scatter_add_(1, target, -prob)
            torch.mm(logits, weight, out=gradient)
            weight_gradient.addmm_(logits.T, states)
        ctx.save_for_backward(hidden_gradient.div_(len(hidden)), weight_gradient.div_(len(hidden)))
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the stored gradients, multiplied by the gradient of the loss."""
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return gradients[0] * hidden_gradient, gradients[0] * weight_gradient, None, None


def distillation_loss(hidden: Tensor, weight: Tensor, targets: Tensor, probs: Tensor) -> Tensor:
    """Return the mean cross-entropy of hidden @ weight.T against the target, in nats.

    Args:
        hidden: Hidden states, [n, d].
        weight: Rows of the LM head, [vocab, d].
        targets: The target's most likely tokens, as row indices of `weight`, [n, k]. A position may
            list the same token twice.
        probs: The target's probabilities of these tokens, [n, k]; each row sums to 1.
    """
    loss: Tensor = _DistillationLoss.apply(hidden, weight, targets, probs)  # type: ignore[no-untyped-call]
    return loss


class _StatesLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, draft: Tensor, target: Tensor, weight: Tensor, bias: Tensor, shares: Tensor
    ) -> Tensor:
        """Return the loss, and store its gradient for the backward pass."""
        gradient = torch.empty_like(draft, dtype=torch.float32)
        total = draft.new_zeros((), dtype=torch.float32)
        parts = (torch.split(rows, LOSS_ROWS) for rows in (draft, target, shares, gradient))
        for draft_rows, target_rows, share, out in zip(*parts, strict=True):
            draft_logits, target_logits = (
                torch.nn.functional.linear(rows.to(weight.dtype), weight, bias).float()
                for rows in (draft_rows, target_rows)
            )
            probs = target_logits.softmax(1)
            log_probs = draft_logits.log_softmax(1)
            total -= ((probs * log_probs).sum(1) * share).sum()
            difference = log_probs.exp_().sub_(probs).mul_(share[:, None])
            out.copy_(difference.to(weight.dtype) @ weight)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return the stored gradient, multiplied by the gradient of the loss."""
        return gradients[0] * ctx.saved_tensors[0], None, None, None, None


def states_loss(
    draft: Tensor, target: Tensor, weight: Tensor, bias: Tensor, shares: Tensor
) -> Tensor:
    """Return the weighted cross-entropy between target and draft logits, in nats.

    Args:
        draft: The draft model's predictions of the target's hidden states, [n, d].
        target: The target's hidden states, [n, d].
        weight: Rows of the LM head, [vocab, d]. Matrix products use the dtype of `weight`.
        bias: Bias of the LM head, [vocab].
        shares: Weight of each position in the loss, float32 [n].
    """
    loss: Tensor = _StatesLoss.apply(draft, target, weight, bias, shares)  # type: ignore[no-untyped-call]
    return loss
