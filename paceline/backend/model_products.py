"""Choose the matrix products of a model, importing kernels only when needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from paceline.backend.resolve import backend_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.backend.products import Products


def fastest_products(model: PreTrainedModel) -> Products:
    """Return the matrix products that make a model's forward passes fastest."""
    if model.device.type != "cpu":
        backend = backend_of(model.device)
        kind: type[Products] = import_module("paceline.backend.products").Products
        return kind(norms=backend.rms_norms(model), backend=backend)
    products: Products = import_module("paceline.cpu.product_choice").fastest(model)
    return products


def has_bfloat16_kernels() -> bool:
    """Return True if there are kernels for the CPU's bfloat16 instructions."""
    available: bool = import_module("paceline.cpu.backend").has_bfloat16_kernels()
    return available
