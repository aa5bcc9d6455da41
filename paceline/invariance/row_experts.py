"""Call a mixture-of-experts module on rows of inputs, as the model would call it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.invariance.row_classes import RowFunction
from paceline.invariance.row_modules import RowModule, counts_for, num_weights


@dataclass(slots=True)
class RowExperts(RowModule):
    """A module of experts; each row's scores select the experts that process the row.

    The test for batch invariance calls the module on random rows. A row contains the module's
    inputs, followed by the scores of all experts. A few columns of the random rows have large
    values, so some experts are selected often and others rarely.

    Attributes:
        num_experts: Number of experts in the module.
        num_choices: Number of experts that are selected per row.
        weights_like: Tensor with the dtype of the selected experts' routing weights.
    """

    num_experts: int = 0
    num_choices: int = 0
    weights_like: Tensor = field(default_factory=lambda: torch.zeros(()))

    @property
    def shape(self) -> str:
        """Shape of the module, for messages."""
        size = self.after[0] - self.num_experts
        return f"{type(self.module).__name__} of {size}, {self.num_choices} of {self.num_experts}"

    def counts(self) -> tuple[int, ...]:
        """Return the row counts that can be probed in a fraction of a second."""
        return counts_for(num_weights(self.module))

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return a function that applies the experts to rows [count, size + num_experts]."""
        return self._route

    @torch.inference_mode()
    def _route(self, rows: Tensor) -> Tensor:
        size = rows.shape[1] - self.num_experts
        inputs, scores = rows[:, :size], rows[:, size:]
        top = scores.float().topk(self.num_choices)
        weights = top.values.softmax(-1).to(self.weights_like.dtype)
        outputs: Tensor = self.module(inputs.contiguous(), top.indices, weights)
        return outputs


class RowDenseExperts(RowModule):
    """A module in which every expert processes every token.

    A row (one token) contains one input vector for each expert.
    """

    def counts(self) -> tuple[int, ...]:
        """Return the row counts that can be probed in a fraction of a second."""
        return counts_for(num_weights(self.module))

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return a function that calls the experts on rows [count, experts, size]."""
        return self._run

    @torch.inference_mode()
    def _run(self, rows: Tensor) -> Tensor:
        count, experts, size = rows.shape
        outputs: Tensor = self.module(rows.transpose(0, 1).reshape(-1, size))
        return outputs.view(experts, count, -1).transpose(0, 1)


class RowSharedExperts(RowDenseExperts):
    """A module that adds the weighted outputs of all experts for every token.

    A row contains the inputs, followed by the routing weights of all experts.
    """

    @torch.inference_mode()
    def _run(self, rows: Tensor) -> Tensor:
        size = rows.shape[1] - len(self.module.get_parameter("down_proj"))
        inputs, weights = rows[:, :size], rows[:, size:]
        outputs: Tensor = self.module(inputs[None].contiguous(), gammas=weights.contiguous())
        return outputs[0]
