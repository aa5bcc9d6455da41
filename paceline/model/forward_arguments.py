"""The names under which a model's forward, and transformers' `generate`, take what paceline
hands them.
"""

from __future__ import annotations

import dataclasses
import inspect

from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

_CACHE_NAMES = ("cache", "past_key_values")  # transformers 5.24 renamed the second to the first


def forward_parameters(model: PreTrainedModel) -> frozenset[str]:
    """Return the argument names that a model's forward accepts.

    The forward of a wrapper hands its keyword arguments on, so it also accepts the names of the
    decoder inside.
    """
    parameters = inspect.signature(model.forward).parameters
    hands_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if not hands_on or any(name in parameters for name in _CACHE_NAMES):
        return frozenset(parameters)
    return frozenset(parameters) | frozenset(
        inspect.signature(model.get_decoder().forward).parameters
    )


def takes_cache(model: PreTrainedModel) -> bool:
    """Whether a model's forward accepts a KV cache."""
    return not forward_parameters(model).isdisjoint(_CACHE_NAMES)


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name under which a model's forward takes the KV cache; default that of the
    installed transformers.
    """
    names = forward_parameters(model)
    return next((name for name in _CACHE_NAMES if name in names), GENERATE_CACHE)


def _generate_cache() -> str:
    names = {field.name for field in dataclasses.fields(GenerateDecoderOnlyOutput)}
    return next(name for name in _CACHE_NAMES if name in names)


GENERATE_CACHE = _generate_cache()
"""Name of the KV cache in the arguments and outputs of transformers' `generate`."""
