"""Find modules and weights from libraries other than torch and transformers.

The quantisation libraries need not be installed. Kernels and probes that read or replace weights
skip models with such modules. `row_check` tests whether the modules treat rows independently.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.backend.overrides import is_free
from paceline.backend.plain_tensors import has_numbers

_NOT_PACKED = {torch.bool, torch.int64}  # masks and positions
# Packages whose modules compute each row independently, unless the architecture itself combines
# rows. The exceptions are transformers' quantised modules, in the packages of `_QUANTISED`.
_KNOWN = ("torch.nn.", "transformers.")
_QUANTISED = ("transformers.integrations.", "transformers.quantizers.")


def foreign_modules(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) for modules with code or weights from other libraries.

    These modules have foreign weights or hooks, or their classes belong neither to torch nor to
    transformers' architectures.
    """
    for name, module in model.named_modules():
        kind = type(module).__module__
        is_known = kind.startswith(_KNOWN) and not kind.startswith(_QUANTISED)
        has_hooks = module._forward_pre_hooks or module._forward_hooks
        if not is_known or has_hooks or _foreign(module):
            yield name, module


def foreign_weights(model: PreTrainedModel) -> str | None:
    """Describe the first weight that is not plain; return None if all are plain.

    A plain weight is an unpacked tensor in a module whose `forward` method has not been replaced.
    For all other weights, paceline runs the model's own code, as `generate` does.
    """
    return next(
        (
            f"{name}.{words}"
            for name, module in model.named_modules()
            if (words := _foreign(module))
        ),
        None,
    )


def _foreign(module: nn.Module) -> str:
    for where, held in (("_parameters", module._parameters), ("_buffers", module._buffers)):
        if type(held) is not dict:
            return f"{where} is a {_name_of(held)}"
        for name, tensor in held.items():
            if tensor is None or tensor.is_meta:
                continue
            if not has_numbers(tensor):
                return f"{name} is a {_name_of(tensor)}"
            is_weight = held is module._parameters or not module._modules
            if is_weight and tensor.dim() > 1 and _is_packed(tensor.dtype):
                return f"{name} holds {str(tensor.dtype).removeprefix('torch.')}"
    is_product = isinstance(module, nn.Linear | Conv1D)
    return "forward is not that of its class" if is_product and not is_free(module) else ""


def _is_packed(dtype: torch.dtype) -> bool:
    """Return whether a dtype's elements need scales or hold several values."""
    if dtype.is_floating_point:
        return dtype.itemsize < 2
    return not dtype.is_complex and dtype not in _NOT_PACKED


def _name_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"
