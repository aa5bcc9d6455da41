"""Choose the backend for a device, importing its kernels only when needed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from paceline.backend.interface import Backend


@cache
def cpu_backend() -> Backend:
    """Return the backend for CPUs."""
    # Imported by name, because the kernels belong to a higher layer and take seconds to import.
    backend: Backend = import_module("paceline.cpu.backend").CPU
    return backend


@cache
def torch_backend() -> Backend:
    """Return the backend that uses torch's operations on any device."""
    backend: Backend = import_module("paceline.backend.torch_backend").TORCH
    return backend


@cache
def cuda_backend() -> Backend:
    """Return the backend for CUDA devices, or torch's if Triton is missing."""
    if not has_triton():
        return torch_backend()
    backend: Backend = import_module("paceline.cuda.backend").CUDA
    return backend


@cache
def has_triton() -> bool:
    """Return whether Triton is installed and a CUDA device is available."""
    if find_spec("triton") is None:
        return False
    available: bool = import_module("torch").cuda.is_available()
    return available


def backend_of(device: torch.device) -> Backend:
    """Return the backend for tensors on a device."""
    backends = {"cpu": cpu_backend, "cuda": cuda_backend}
    return backends.get(device.type, torch_backend)()


def argmax_tokens(logits: Tensor) -> Tensor:
    """Call `argmax` on the backend for the logits' device."""
    return backend_of(logits.device).argmax(logits)


def topk_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Call `topk` on the backend for the logits' device."""
    return backend_of(logits.device).topk(logits, count)


def logit_entropies(logits: Tensor) -> Tensor:
    """Call `entropies` on the backend for the logits' device."""
    return backend_of(logits.device).entropies(logits)
