"""Describe packed weights of a loaded model, and convert them to plain tensors."""

from __future__ import annotations

import copy
from collections import Counter

from torch import nn
from transformers import PreTrainedModel

from paceline.backend.packed_experts import PackedExperts
from paceline.backend.packed_tensor import PackedTensor
from paceline.backend.packed_weight import PackedWeight


def packed_formats(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the block formats of a model's packed weights, the most frequent first.

    Formats are ordered by their number of parameters. If no weights are packed, the result is
    empty.
    """
    counts: Counter[str] = Counter()
    for weight in model.parameters():
        for part in weight.parts if isinstance(weight, PackedExperts) else (weight,):
            if isinstance(part, PackedWeight):
                counts[part.block_format.name] += part.numel()
    return tuple(name for name, _ in counts.most_common())


def with_plain_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model in which all packed weights are bfloat16 tensors.

    Unpacking does not change the values, so the copy is bit-identical to a converted checkpoint.
    """
    # `deepcopy` takes the objects in its memo instead of copying, so tied weights stay tied.
    plain = {
        id(weight): nn.Parameter(weight.unpacked(), requires_grad=False)
        for weight in model.parameters()
        if isinstance(weight, PackedTensor)
    }
    return copy.deepcopy(model, plain)
