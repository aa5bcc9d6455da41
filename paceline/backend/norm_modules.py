"""Find the modules of a model that compute RMS norms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.plain_tensors import is_plain

_EPS = ("variance_epsilon", "eps")  # possible names of the attribute with the epsilon


def find_rms_norms(
    model: PreTrainedModel,
    norm: Callable[[Tensor, Tensor, float], Tensor],
    takes_weight: Callable[[Tensor], bool],
    tolerances: Mapping[torch.dtype, float],
) -> dict[nn.Module, float]:
    """Find the RMS norm modules that `norm` can replace, and return their epsilons.

    The function compares each module with `norm` on two rows, because norms with the same name may
    have different formulas.

    Args:
        model: Model whose modules are compared with `norm`.
        norm: Function that normalises rows, given a weight and an epsilon.
        takes_weight: Function that returns whether `norm` supports a weight [size].
        tolerances: Largest accepted difference, relative to the result, for each dtype.
    """
    epsilons = {}
    for module in model.modules():
        eps, weight = _epsilon_of(module), _weight_of(module)
        if eps is None or weight is None or weight.dtype not in tolerances:
            continue
        if not _takes_rows_only(module):  # such as norms with a gate
            continue
        if takes_weight(weight) and _agrees(module, norm, weight, eps, tolerances[weight.dtype]):
            epsilons[module] = eps
    return epsilons


def _takes_rows_only(module: nn.Module) -> bool:
    """Return whether a norm's `forward` method has no parameters besides the rows."""
    return len(inspect.signature(type(module).forward).parameters) == 2


def _epsilon_of(module: nn.Module) -> float | None:
    values = (vars(module).get(name) for name in _EPS)
    return next((value for value in values if isinstance(value, float)), None)


def _weight_of(module: nn.Module) -> Tensor | None:
    """Return the weight [size] if it is a module's only parameter, otherwise None."""
    parameters = module._parameters
    if type(parameters) is not dict or list(parameters) != ["weight"] or list(module.children()):
        return None
    weight = parameters["weight"]
    if weight is None or not is_plain(weight) or weight.dim() != 1:
        return None
    return weight.detach()


def _agrees(
    module: nn.Module,
    norm: Callable[[Tensor, Tensor, float], Tensor],
    weight: Tensor,
    eps: float,
    tolerance: float,
) -> bool:
    # Layer norms subtract the mean, so a mean other than zero exposes them. In the second row, the
    # numbers are so small that eps affects the result.
    ramp = torch.linspace(-1.0, 3.0, len(weight)).roll(len(weight) // 3)
    rows = (ramp * torch.tensor([[1.0], [eps**0.5]])).to(weight)
    try:
        with torch.inference_mode():
            expected: Any = type(module).forward(module, rows)
            result = norm(rows, weight, eps)
            if (expected.shape, expected.dtype) != (result.shape, result.dtype):
                return False
            return bool(((expected - result).abs() <= tolerance * expected.abs()).all())
    except Exception:  # the module has other arguments, or is not a norm
        return False
