"""Find a model's modules that compute each output row from one input row.

One short forward pass shows how the model calls these modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.experts import ExpertsOverride
from paceline.backend.overrides import ForwardOverride
from paceline.backend.own_code import OwnCodeOverride
from paceline.backend.plain_tensors import is_matrix
from paceline.backend.product_calls import (
    DenseExpertsOverride,
    PositionBiasOverride,
    RouterOverride,
)
from paceline.invariance.row_experts import RowDenseExperts, RowExperts, RowSharedExperts
from paceline.invariance.row_modules import RowMixer, RowModule, RowPositionBias, RowRouter
from paceline.invariance.settings import PROBE_TOKENS
from paceline.model.eagle.layers import decoder_of
from paceline.model.media_prefill import takes_media
from paceline.model.mixers.seam import MixerForward


def find_row_modules(model: PreTrainedModel) -> tuple[list[RowModule], str]:
    """Run a short forward pass, and describe each kind of module that it calls.

    Returns:
        One `RowModule` per kind of module, and "". If a module cannot be tested separately, the
        list is empty, and the string is a clause that states the reason.
    """
    kinds: dict[tuple[Any, ...], RowModule] = {}
    observed: set[nn.Module] = set()
    called: set[nn.Module] = set()
    constants = {*map(id, model.parameters()), *map(id, model.buffers())}
    thread = get_ident()

    def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if get_ident() != thread:  # other threads may use the model
            return
        called.add(module)
        row_module = _row_module(name, module, inputs, output, constants)
        if row_module is None:
            return
        observed.add(module)
        kind = kinds.setdefault(_kind_of(row_module), row_module)
        if kind is not row_module:
            kind.times += 1

    # The hooks are removed after this forward pass.
    hooks = [
        module.register_forward_hook(partial(record, name))
        for name, module in model.named_modules()
        if not any(module.children()) or _override(module) is not None
    ]
    try:
        with torch.inference_mode():
            token_ids = torch.arange(PROBE_TOKENS, device=model.device)[None] % 2
            model(input_ids=token_ids, use_cache=False)
    except Exception as error:  # a module of another library may raise any type
        return (
            [],
            f"{model.__class__.__name__} cannot be observed in a forward pass: {error}"
            f" ({type(error).__name__})",
        )
    finally:
        for hook in hooks:
            hook.remove()
    for mixer in _row_mixers(model):
        kind = kinds.setdefault(_kind_of(mixer), mixer)
        kind.times += kind is not mixer
        observed.update(mixer.module.modules())
    fault = _unprobed(model, observed, called)
    return ([], fault) if fault else (list(kinds.values()), "")


def _kind_of(module: RowModule) -> tuple[Any, ...]:
    """Return a key that is the same for all modules that use the same kernels."""
    parameters = [
        (weight.shape, weight.stride(), weight.dtype) for weight in module.module.parameters()
    ]
    return (
        type(module.module),
        repr(module.module),
        module.row_shape,
        len(module.before),
        module.like.dtype,
        repr(parameters),
    )


def _unprobed(model: PreTrainedModel, observed: set[nn.Module], called: set[nn.Module]) -> str:
    """Describe the first weight that the probes do not cover, or return "".

    Parts of a multimodal model that process no text, such as its vision tower, are ignored,
    because paceline's forward passes never call them.
    """
    decoder = set(decoder_of(model).modules()) if takes_media(model) else set(model.modules())
    for name, module in model.named_modules():
        if module in observed or isinstance(module, nn.Embedding):
            continue
        if module not in decoder and called.isdisjoint(module.modules()):
            continue
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if is_matrix(parameter):
                return (
                    f"{name}.{parameter_name} belongs to a {type(module).__name__}, whose sums"
                    " cannot be tested individually; expected weights in nn.Linear, Conv1D and"
                    " embeddings"
                )
    return ""


def _row_module(
    name: str,
    module: nn.Module,
    inputs: tuple[Any, ...],
    output: Any,
    constants: Set[int],
) -> RowModule | None:
    """Describe a module as a `RowModule`, from the inputs and output of one call.

    Return None if the module does not compute each token's output from that token's input.
    """
    override = _override(module)
    if isinstance(override, ExpertsOverride):
        return _row_experts(name, module, inputs)
    if isinstance(override, DenseExpertsOverride):
        experts, (*_, size) = len(module.get_parameter("down_proj")), inputs[0].shape
        like = inputs[0].new_zeros(())
        if "gate_proj" in module._parameters:
            return RowSharedExperts(name, module, (), (size + experts,), like)
        return RowDenseExperts(name, module, (experts,), (size,), like)
    if isinstance(override, PositionBiasOverride):
        states = inputs[0]
        return RowPositionBias(name, module, (), states.shape[2:], states.new_zeros(()))
    if isinstance(override, RouterOverride):
        return _row_router(name, module, inputs, output, constants)
    if (
        len(inputs) != 1
        or not isinstance(inputs[0], Tensor)
        or not isinstance(output, Tensor)
        or output is inputs[0]
    ):
        return None
    shape = tuple(inputs[0].shape)
    if (
        not inputs[0].is_floating_point()
        or PROBE_TOKENS not in shape[:-1]
        or shape[:-1] != tuple(output.shape[:-1])
    ):
        return None
    axis = shape.index(PROBE_TOKENS)
    return RowModule(name, module, shape[:axis], shape[axis + 1 :], inputs[0].new_zeros(()))


def _row_mixers(model: PreTrainedModel) -> Iterator[RowMixer]:
    """Yield the recurrent mixers of a `ModelView` that process tokens one by one."""
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    for name, module in model.named_modules():
        forward = vars(module).get("forward")
        if isinstance(forward, MixerForward) and forward.mixer.folds:
            size, like = hidden_size, next(module.parameters()).new_zeros((), dtype=model.dtype)
            if hasattr(module, "conv_idx"):  # a convolution outside a larger mixer
                size = module.get_submodule("conv1d").in_channels
            yield RowMixer(name, module, (), (size,), like)


def _row_experts(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> RowModule | None:
    """Return `RowExperts` for a module of experts, given the inputs of one call.

    Return None if the inputs do not have the expected form.
    """
    if len(inputs) != 3 or inputs[1].dim() != 2:
        return None
    rows, choices, weights = inputs
    num_experts: Any = module.num_experts
    return RowExperts(
        name,
        module,
        before=(),
        after=(rows.shape[-1] + num_experts,),
        like=rows.new_zeros(()),
        num_experts=num_experts,
        num_choices=choices.shape[1],
        weights_like=weights.new_zeros(()),
    )


def _row_router(
    name: str,
    module: nn.Module,
    inputs: tuple[Any, ...],
    output: Any,
    constants: Set[int],
) -> RowModule | None:
    """Return a `RowRouter` if every result has one row per token, otherwise None."""
    results = [output] if isinstance(output, Tensor) else output
    rows, *others = inputs
    if (
        not isinstance(rows, Tensor)
        or not all(other is None or id(other) in constants for other in others)
        or not all(isinstance(result, Tensor) for result in results)
        or any(len(result) != PROBE_TOKENS for result in (rows.flatten(0, -2), *results))
    ):
        return None
    return RowRouter(
        name, module, (), (rows.shape[-1],), rows.new_zeros(()), constants=tuple(others)
    )


def _override(module: nn.Module) -> ForwardOverride | None:
    """Return the object that replaces a module's `forward` in a `ModelView`, or None.

    The result is also None if the replacement runs the module's own code. In this case, the probes
    test the submodules, not the module as a whole.
    """
    override = vars(module).get("forward")
    is_whole = isinstance(override, ForwardOverride) and not isinstance(override, OwnCodeOverride)
    return override if is_whole else None
