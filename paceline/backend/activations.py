"""Compute activation functions independently of an element's position.

torch divides a tensor among its threads. Each thread computes most of its elements with vector
instructions, and the last few one by one. The two routines round differently, so a token's values
would depend on how many tokens share the forward pass. This module pads the tensor, so that every
thread computes only whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from paceline.backend.overrides import ForwardOverride, is_free
from paceline.backend.settings import ACTIVATION_GRAIN, VECTOR_ELEMENTS

# Functions of single elements; torch has others, such as softmax, in the same module.
_KINDS = (nn.GELU, nn.Mish, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Tanh)
_MODULE = "transformers.activations"


class ActivationOverride(ForwardOverride):
    """Computes an activation function with vector instructions only."""

    __slots__ = ()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the activation of each element."""
        return in_whole_vectors(lambda padded: self._forward(self.module, padded), inputs)


def activation_overrides(model: PreTrainedModel) -> dict[nn.Module, type[ForwardOverride]]:
    """Return overrides for the activation functions of a model."""
    return {
        module: ActivationOverride
        for module in model.modules()
        if (type(module) in _KINDS or type(module).__module__ == _MODULE)
        and not module._modules
        and not module._parameters
        and is_free(module)
    }


def in_whole_vectors(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Apply a function to each element, using vector instructions only.

    Args:
        function: Function that torch applies element by element.
        inputs: Inputs of any shape.
    """
    count = inputs.numel()
    padded = _padded_count(count, torch.get_num_threads())
    if padded == count and inputs.is_contiguous():
        return function(inputs)
    flat = functional.pad(inputs.reshape(-1), (0, padded - count))
    return function(flat)[:count].view(inputs.shape)


def _padded_count(count: int, max_threads: int) -> int:
    """Round up an element count so that every thread computes only whole vectors."""
    threads = 1
    while True:
        share = VECTOR_ELEMENTS * threads
        padded = -(-count // share) * share
        needed = max(1, min(max_threads, -(-padded // ACTIVATION_GRAIN)))
        if needed <= threads:
            return padded
        threads = needed
