"""Find a decoder's layers, and capture the inputs of modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.errors import UnsupportedModelError


@contextmanager
def inputs_of(modules: Sequence[nn.Module]) -> Iterator[list[list[Tensor]]]:
    """Capture the hidden states that modules receive in the `with` block.

    Only calls from this thread are captured; other threads may use the model in the meantime.

    Yields:
        For each module, the hidden states [rows, columns, hidden] from every call.
    """
    inputs: list[list[Tensor]] = [[] for _ in modules]
    thread = get_ident()
    hooks = [
        module.register_forward_pre_hook(partial(_keep, thread, states), with_kwargs=True)
        for module, states in zip(modules, inputs, strict=True)
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """Return the module that computes the hidden states for a model's LM head."""
    decoder: Any = model.get_decoder()
    inner: nn.Module = decoder.model if decoder is model else decoder  # Llama 4 returns itself
    return inner


def decoder_layers(model: PreTrainedModel, numbers: Sequence[int]) -> list[nn.Module]:
    """Return the decoder layers that have the given indices.

    Args:
        model: Model that contains the decoder.
        numbers: Indices of the layers, starting from 0.
    Raises:
        UnsupportedModelError: The decoder has no list with the configured number of layers.
    """
    if not numbers:
        return []
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for part in decoder_of(model).modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return [part[number] for number in numbers]
    raise UnsupportedModelError(
        f"{type(model).__name__}: got a decoder without a list of its {count} layers, which a draft"
        " model needs to read states of middle layers. Train a draft model with \0reads_at\0 = 0."
    )


def _keep(
    thread: int, states: list[Tensor], _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> None:
    if get_ident() == thread:
        states.append(inputs[0] if inputs else named["hidden_states"])
