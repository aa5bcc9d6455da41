"""Layers in the middle of a decoder, and what goes into modules while they run."""

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
    """Collect what goes into modules in the forwards inside, of this thread alone: others may share
    the model.

    Yields:
        of each of them the hidden states of every call, [rows, columns, hidden].
    """
    found: list[list[Tensor]] = [[] for _ in modules]
    thread = get_ident()
    hooks = [
        module.register_forward_pre_hook(partial(_keep, thread, kept), with_kwargs=True)
        for module, kept in zip(modules, found, strict=True)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """Return what makes the hidden states that a model's LM head reads."""
    found: Any = model.get_decoder()
    inner: nn.Module = found.model if found is model else found  # Llama 4 names itself
    return inner


def decoder_layers(model: PreTrainedModel, numbers: Sequence[int]) -> list[nn.Module]:
    """Return some layers of a decoder.

    Args:
        numbers: of the layers, from 0 on.
    Raises:
        UnsupportedModelError: it has no list of as many as its configuration says.
    """
    if not numbers:
        return []
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for part in decoder_of(model).modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return [part[number] for number in numbers]
    raise UnsupportedModelError(
        f"{type(model).__name__}: got a decoder without a list of its {count} layers; expected one,"
        " for a draft that reads states in the middle. Train one with reads_at = 0."
    )


def _keep(
    thread: int, kept: list[Tensor], _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> None:
    if get_ident() == thread:
        kept.append(inputs[0] if inputs else named["hidden_states"])
