"""What goes into layers in the middle of a decoder, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.errors import UnsupportedModelError


@contextmanager
def layer_inputs(model: PreTrainedModel, layers: ListLike[int]) -> Iterator[list[list[Tensor]]]:
    """Collect what goes into layers in the forwards inside, of this thread alone: others may share the model.

    Args:
        layers: their numbers, from 0 on.
    Yields:
        of each of them the inputs of every call, [rows, columns, hidden].
    Raises:
        UnsupportedModelError: a model whose layers are not found.
    """
    found: list[list[Tensor]] = [[] for _ in layers]
    modules = decoder_layers(model) if layers else []
    hooks = [
        modules[layer].register_forward_pre_hook(partial(_keep, get_ident(), kept), with_kwargs=True)
        for layer, kept in zip(layers, found, strict=True)
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


def decoder_layers(model: PreTrainedModel) -> ListLike[nn.Module]:
    """Return the layers of a decoder, in their order.

    Raises:
        UnsupportedModelError: it has no list of as many as its configuration says.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for part in decoder_of(model).modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return list(part)
    raise UnsupportedModelError(
        f"{type(model).__name__}: got a decoder without a list of its {count} layers; expected one, for a draft that reads states"
        " in the middle. Train one with reads_at = 0."
    )


def _keep(thread: int, kept: list[Tensor], _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    if get_ident() == thread:
        kept.append(inputs[0] if inputs else named["hidden_states"])
