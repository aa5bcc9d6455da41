"""Identify the environment in which measurements of a model are valid.

paceline repeats a measurement if the machine, the model or the software versions have changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from paceline.util.machine import instruction_flags, processor

_KERNEL_VARIABLES = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_", "CUBLAS_", "NVIDIA_TF32")  # prefixes


def environment_key(model: PreTrainedModel, **extra_facts: Any) -> str:
    """Return a checksum of everything on which a model's results and speed depend.

    Args:
        model: Model. The checksum covers its configuration, the shapes and formats of its
            parameters, and its module types.
        extra_facts: Additional facts on which the measurement depends, as JSON values.
    """
    config = {
        key: value
        for key, value in model.config.to_dict().items()
        if key not in ("_name_or_path", "transformers_version")
    }
    shapes = [
        (name, list(weight.shape), str(weight.dtype), weight.requires_grad, _storage(weight))
        for name, weight in model.named_parameters()
    ]
    kinds = [
        (name, type(module).__module__, type(module).__qualname__)
        for name, module in model.named_modules()
    ]
    device = model.device
    facts = {
        "processor": [processor(), *instruction_flags()],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "device": device.type,
        "versions": [torch.__version__, transformers.__version__, torch.__config__.show()],
        "settings": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_KERNEL_VARIABLES)
        },
        "precision": [
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        ],
        "mkldnn": torch.backends.mkldnn.enabled,
        "accelerator": _accelerator(device),
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
        "model": [model.__class__.__name__, config, shapes, kinds],
        **extra_facts,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _storage(weight: torch.Tensor) -> str:
    """Return a parameter's type, and the formats of its blocks if it is packed."""
    return " ".join([str(type(weight)), *getattr(weight, "formats", ())])


def _accelerator(device: torch.device) -> list[Any]:
    if device.type != "cuda":
        return []
    kernels, triton = torch.backends.cuda.matmul, importlib.util.find_spec("triton")
    return [
        torch.cuda.get_device_name(device),
        torch.version.cuda,
        kernels.allow_bf16_reduced_precision_reduction,
        kernels.allow_fp16_reduced_precision_reduction,
        importlib.metadata.version("triton") if triton else None,
    ]
