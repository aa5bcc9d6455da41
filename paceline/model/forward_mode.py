"""What a model's forwards are made in: without gradients, and on CUDA without cuDNN's attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from paceline.attention.cudnn import without_cudnn
from paceline.model.quantisation import foreign_weights

Mode = Callable[[], AbstractContextManager[Any]]
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class _HasMode(Protocol):
    mode: Mode


_Owner = TypeVar("_Owner", bound=_HasMode)


def mode_of(model: PreTrainedModel) -> Mode:
    """Return the mode for the forwards of a model.

    Some classes of quantised weights cannot be used in torch's inference mode. A model with such
    weights runs as in `generate`.
    """
    without_gradients: Mode = (
        torch.inference_mode if foreign_weights(model) is None else _as_generate
    )
    on_cuda = any(one.device.type == "cuda" for one in model.parameters())
    return _on_cuda(without_gradients) if on_cuda else without_gradients


def in_forward_mode(
    method: Callable[Concatenate[_Owner, _Given], _Made],
) -> Callable[Concatenate[_Owner, _Given], _Made]:
    """Let a method run in the `mode` of its object."""

    @wraps(method)
    def run(self: _Owner, /, *args: _Given.args, **named: _Given.kwargs) -> _Made:
        with self.mode():
            return method(self, *args, **named)

    return run


@contextmanager
def _as_generate() -> Iterator[None]:
    """Turn gradients off, and with them an inference mode of the caller's."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _on_cuda(mode: Mode) -> Mode:
    @contextmanager
    def both() -> Iterator[None]:
        with without_cudnn(), mode():
            yield

    return both
