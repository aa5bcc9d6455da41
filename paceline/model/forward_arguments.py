"""Find the argument names of a model's `forward` and of transformers' `generate`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Names of the KV-cache argument.

transformers uses the first name from version 5.24 on. Earlier versions use the third name for Mamba
models, and the second name for all other models.
"""


def forward_parameters(model: PreTrainedModel) -> frozenset[str]:
    """Return the names of the arguments that a model's `forward` accepts.

    If `forward` passes keyword arguments on to an inner decoder, the names of the decoder's
    arguments are included.
    """
    parameters = inspect.signature(model.forward).parameters
    passes_on = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    if not passes_on or any(name in parameters for name in CACHE_NAMES):
        return frozenset(parameters)
    return frozenset(parameters) | frozenset(
        inspect.signature(model.get_decoder().forward).parameters
    )


def takes_cache(model: PreTrainedModel) -> bool:
    """Return whether a model's `forward` accepts a KV cache."""
    return not forward_parameters(model).isdisjoint(CACHE_NAMES)


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name of the KV-cache argument of a model's `forward`.

    If `forward` has no such named argument, the result is the name that the installed version of
    transformers uses.
    """
    names = forward_parameters(model)
    return next((name for name in CACHE_NAMES if name in names), GENERATE_CACHE)


def given_cache(inputs: Mapping[str, Any]) -> Any:
    """Return the KV cache that `generate` has prepared; None if there is none.

    Args:
        inputs: Arguments that `generate` passes to the model's `forward`.
    """
    return next((inputs[name] for name in CACHE_NAMES if name in inputs), None)


def _generate_cache() -> str:
    names = {field.name for field in dataclasses.fields(GenerateDecoderOnlyOutput)}
    return next(name for name in CACHE_NAMES if name in names)


GENERATE_CACHE = _generate_cache()
"""Name of the KV cache in the arguments and outputs of transformers' `generate`."""
