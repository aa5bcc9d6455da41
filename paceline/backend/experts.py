"""Compute mixture-of-experts layers with a backend, expert by expert.

transformers computes the products of all experts together (grouped). The rounding of a row's result
then depends on how many rows share the row's expert. With this module, the backend instead computes
each expert's product separately.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.backend.activations import no_replacements, whole_vectors
from paceline.backend.interface import Backend, ExpertProducts
from paceline.backend.overrides import ForwardOverride, OverrideSettings, is_free
from paceline.backend.packed_experts import PackedExperts
from paceline.backend.plain_tensors import PLAIN, is_matrix, is_plain
from paceline.backend.product_calls import (
    ConvolutionOverride,
    DenseExpertsOverride,
    MixerOverride,
    PaddedLinearOverride,
    PositionBiasOverride,
    RouterOverride,
)
from paceline.backend.settings import MAX_PADDED_WEIGHTS

_MATRICES = ("gate_up_proj", "up_proj", "down_proj")
# Inputs of modules in which every expert receives all rows, by the names of their weights.
_DENSE_INPUTS = {
    frozenset({"gate_up_proj", "down_proj"}): ["hidden_states"],
    frozenset({"gate_proj", "up_proj", "down_proj"}): ["hidden_states", "gammas"],
}
_BIAS_INPUTS = ["relative_states", "query_positions", "key_positions"]


class ExpertsOverride(ForwardOverride):
    """Computes each expert's matrix products with the backend.

    For each row, the experts' outputs are weighted, and summed in the order that `top_k_index`
    specifies.
    """

    __slots__ = ("_grouped",)

    def __init__(self, module: nn.Module, products: OverrideSettings) -> None:
        super().__init__(module, products)
        self._grouped: dict[str, ExpertProducts | None] = {}

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum of the experts' outputs, as in transformers.

        Args:
            hidden_states: Inputs, [rows, size].
            top_k_index: Experts of each row, int64 [rows, k].
            top_k_weights: Weights of the experts' outputs, [rows, k].
        """
        module: Any = self.module
        if not self._suits(hidden_states):
            usual: Tensor = self._forward(module, hidden_states, top_k_index, top_k_weights)
            return usual
        num_rows, num_choices = top_k_index.shape
        experts = top_k_index.flatten()
        order = experts.argsort(stable=True)
        counts = experts.bincount(minlength=module.num_experts).tolist()
        inputs = hidden_states[order.div(num_choices, rounding_mode="floor")]
        inner = self._multiply(inputs, counts, "gate_up_proj" if module.has_gate else "up_proj")
        with whole_vectors(inner.dtype):
            inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        outputs = self._multiply(inner, counts, "down_proj")
        # transformers 5.19 has no such norms.
        if getattr(module, "has_post_expert_norm", False):
            outputs = module.post_expert_norm(outputs)
        outputs = outputs * top_k_weights.flatten()[order].unsqueeze(-1)
        by_row = torch.empty_like(outputs)
        by_row[order] = outputs
        return by_row.view(num_rows, num_choices, -1).sum(dim=1).to(hidden_states.dtype)

    def _suits(self, rows: Tensor) -> bool:
        weight = self._attributes["_parameters"].get("down_proj")
        is_packed = type(weight) is PackedExperts  # transformers' code would unpack all experts
        is_in_range = self.products.min_rows <= len(rows) <= self.products.max_rows
        return (
            (is_packed or (is_in_range and type(weight) in PLAIN))
            and type(rows) in PLAIN
            and rows.dtype == weight.dtype
            and not torch.is_grad_enabled()
        )

    def _multiply(self, rows: Tensor, counts: list[int], name: str) -> Tensor:
        """Multiply rows, sorted by expert, by the weights of their experts.

        `counts` lists the number of rows of each expert.
        """
        parameters = self._attributes["_parameters"]
        weights, biases = _oriented(self.module, name), parameters.get(f"{name}_bias")
        grouped = self._grouped.get(name)
        if grouped is None or not grouped.reads(weights):
            grouped = self._grouped[name] = self.products.backend.expert_products(weights)
        if grouped is not None and grouped.can_run():
            with no_replacements():
                return grouped.multiply(rows, counts, biases)
        linear, first, products = self.products.backend.linear, 0, []
        for expert, count in enumerate(counts):
            if count:
                inputs = rows[first : first + count]
                if isinstance(weights, PackedExperts):
                    products.append(weights.multiply_rows(inputs, expert, linear))
                else:
                    bias = None if biases is None else biases[expert]
                    products.append(linear(inputs, weights[expert], bias))
                first += count
        return torch.cat(products)


def routing_overrides(
    model: PreTrainedModel, backend: Backend
) -> dict[nn.Module, type[ForwardOverride]]:
    """Return overrides for experts, routers, mixers and small products.

    An override replaces the `forward` method of a module in a `ModelView`. The result is empty if
    the model has neither recurrent layers nor experts that the backend can compute.
    """
    overrides: dict[nn.Module, type[ForwardOverride]] = {}
    applies = False
    for module in model.modules():
        if _has_experts(module, backend):
            overrides[module], applies = ExpertsOverride, True
        elif _is_dense_experts(module):
            overrides[module], applies = DenseExpertsOverride, True
        elif _is_narrow(module, backend):
            overrides[module] = PaddedLinearOverride
        elif _is_router(module):
            overrides[module] = RouterOverride
        elif is_position_bias(module):
            overrides[module] = PositionBiasOverride
        elif _is_multiplying_mixer(module):
            overrides[module] = MixerOverride
        elif _has_grouped_convolution(module):
            overrides |= dict.fromkeys(
                filter(_is_convolution, module.children()), ConvolutionOverride
            )
        applies |= is_depthwise(module)
    return overrides if applies else {}


def is_depthwise(module: nn.Module) -> bool:
    """Return True for a depthwise convolution, as in recurrent layers."""
    return isinstance(module, nn.Conv1d) and module.groups == module.in_channels


def _has_experts(module: nn.Module, backend: Backend) -> bool:
    """Return True for an experts module whose weights the backend supports."""
    attributes = vars(module)
    held: dict[str, Any] = module._parameters
    names = [name for name in _MATRICES if name in held]
    return (
        "is_transposed" in attributes
        and not attributes.get("_is_expert_parallel")
        and len(names) == 2
        and held.keys() <= {*_MATRICES, *(f"{name}_bias" for name in _MATRICES)}
        and (
            has_packed_experts(module)
            or all(
                is_plain(held[name])
                and held[name].dim() == 3
                and backend.takes_weight(_oriented(module, name)[0])
                for name in names
            )
        )
        and is_free(module)
    )


def has_packed_experts(module: nn.Module) -> bool:
    """Return True for an experts module whose weights are all stored in blocks."""
    held: list[Any] = [*module._parameters.values()]
    return bool(held) and all(type(weight) is PackedExperts for weight in held)


def _is_dense_experts(module: nn.Module) -> bool:
    """Return True for experts modules in which every expert receives all rows."""
    matrices: list[Any] = [*module._parameters.values()]
    inputs = _DENSE_INPUTS.get(frozenset(module._parameters))
    return (
        inputs is not None
        and "is_transposed" not in vars(module)
        and _inputs_of(module) == inputs
        and all(is_plain(matrix) and matrix.dim() == 3 for matrix in matrices)
        and is_free(module)
    )


def is_position_bias(module: nn.Module) -> bool:
    """Return True for a module that computes a bias for each pair of positions.

    The module multiplies each query's states by a matrix. The matrix has one column per distance
    between a query and a key.
    """
    weight: Any = module._parameters.get("proj")
    return (
        is_plain(weight)
        and weight.dim() == 2
        and len(module._parameters) == 1
        and _inputs_of(module) == _BIAS_INPUTS
        and is_free(module)
    )


def _inputs_of(module: nn.Module) -> list[str]:
    """Return the names of the arguments of a module's `forward` method."""
    return list(inspect.signature(type(module).forward).parameters)[1:]


def _oriented(module: nn.Module, name: str) -> Tensor:
    """Return a view of all weights as [experts, out, in]."""
    weights: Any = module._parameters[name]
    return weights.transpose(1, 2) if vars(module).get("is_transposed") else weights  # type: ignore[no-any-return]


def _is_narrow(module: nn.Module, backend: Backend) -> bool:
    """Return True for a small linear module whose weight the backend must pad."""
    return (
        type(module) is nn.Linear
        and is_plain(module._parameters.get("weight"))  # others may have removed the parameter
        and module.weight.numel() <= MAX_PADDED_WEIGHTS
        and not backend.takes_weight(module.weight)
        and is_free(module)
    )


def _is_router(module: nn.Module) -> bool:
    """Return True for a module whose own code multiplies by a weight matrix."""
    weight: Any = module._parameters.get("weight")
    # Other libraries' subclasses of `nn.Linear` may store other weights.
    is_own = type(module).__module__.startswith("transformers.") and type(module) is not Conv1D
    return (
        (is_own or not isinstance(module, nn.Linear | Conv1D))
        and not isinstance(module, nn.Embedding)
        and not module._modules
        and is_plain(weight)
        and weight.dim() == 2
        and is_free(module)
    )


def _is_multiplying_mixer(module: nn.Module) -> bool:
    """Return True for a recurrent mixer that may multiply by its own weights.

    Such a mixer has a matrix among its own parameters, outside its submodules. For example, the
    decay rates of a selective scan form a matrix.
    """
    return (
        any(map(is_depthwise, module.children()))
        and any(map(is_matrix, module.parameters(recurse=False)))
        and is_free(module)
    )


def _has_grouped_convolution(module: nn.Module) -> bool:
    """Return True for a mixer with both depthwise and other convolutions."""
    children = [child for child in module.children() if isinstance(child, nn.Conv1d)]
    return any(map(is_depthwise, children)) and not all(map(is_depthwise, children))


def _is_convolution(module: nn.Module) -> bool:
    """Return True for a plain convolution without padding."""
    return (
        type(module) is nn.Conv1d
        and (module.padding, module.stride, module.dilation) == ((0,), (1,), (1,))
        and all(map(is_plain, module.parameters()))
        and is_free(module)
    )
