"""Choose the backend of a device, and import its kernels when needed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from paceline.backend.interface import Backend
    from paceline.backend.products import Products


@cache
def cpu_backend() -> Backend:
    """Return the backend of CPUs."""
    # By name: the kernels are in a layer above this one, and take seconds to import.
    backend: Backend = import_module("paceline.cpu.backend").CPU
    return backend


@cache
def torch_backend() -> Backend:
    """Return the backend that runs torch's operations, on any device."""
    backend: Backend = import_module("paceline.backend.torch_backend").TORCH
    return backend


@cache
def cuda_backend() -> Backend:
    """Return the backend of CUDA devices; torch's without Triton."""
    if not has_triton():
        return torch_backend()
    backend: Backend = import_module("paceline.cuda.backend").CUDA
    return backend


@cache
def has_triton() -> bool:
    """Return whether Triton is installed and there is a CUDA device."""
    if find_spec("triton") is None:
        return False
    available: bool = import_module("torch").cuda.is_available()
    return available


def backend_of(device: torch.device) -> Backend:
    """Return the backend for tensors on a device."""
    backends = {"cpu": cpu_backend, "cuda": cuda_backend}
    return backends.get(device.type, torch_backend)()


def argmax_tokens(logits: Tensor) -> Tensor:
    """Run `Backend.argmax` on the backend of the logits' device."""
    return backend_of(logits.device).argmax(logits)


def topk_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Run `Backend.topk` on the backend of the logits' device."""
    return backend_of(logits.device).topk(logits, count)


def logit_entropies(logits: Tensor) -> Tensor:
    """Run `Backend.entropies` on the backend of the logits' device."""
    return backend_of(logits.device).entropies(logits)


def fastest_products(model: PreTrainedModel) -> Products:
    """Return the products with which forward passes of a model take the least time."""
    if model.device.type != "cpu":
        backend = backend_of(model.device)
        kind: type[Products] = import_module("paceline.backend.products").Products
        return kind(norms=backend.rms_norms(model), backend=backend)
    products: Products = import_module("paceline.cpu.product_choice").fastest(model)
    return products


def draft_products(model: PreTrainedModel) -> Products:
    """Return the fastest products for a model on a CPU that only drafts.

    They may change the numbers of the model: products with few rows get weights of 8 bits.
    """
    products: Products = import_module("paceline.cpu.backend").draft_products(model)
    return products


def has_bfloat16_kernels() -> bool:
    """Return True if kernels use the CPU's instructions for bfloat16 products."""
    available: bool = import_module("paceline.cpu.backend").has_bfloat16_kernels()
    return available
