"""Choose the matrix products of a model, and import their kernels when needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from paceline.backend.resolve import backend_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.backend.products import Products


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
