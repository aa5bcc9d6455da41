"""Run forward passes without gradients and, on CUDA, without cuDNN attention."""

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
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _HasMode(Protocol):
    mode: Mode


_Owner = TypeVar("_Owner", bound=_HasMode)


def mode_of(model: PreTrainedModel) -> Mode:
    """Return the context manager in which a model's forward passes run.

    torch's inference mode does not support some quantised weight classes. A model with such
    weights runs in `torch.no_grad()` instead, as in transformers' `generate`.
    """
    without_gradients: Mode = (
        torch.inference_mode if foreign_weights(model) is None else _as_generate
    )
    on_cuda = any(parameter.device.type == "cuda" for parameter in model.parameters())
    return _on_cuda(without_gradients) if on_cuda else without_gradients


def in_forward_mode(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Decorate a method so that it runs in the context that `self.mode` returns."""

    @wraps(method)
    def run(self: _Owner, /, *args: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        with self.mode():
            return method(self, *args, **named)

    return run


@contextmanager
def _as_generate() -> Iterator[None]:
    # The caller may be in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        yield


def _on_cuda(mode: Mode) -> Mode:
    @contextmanager
    def both() -> Iterator[None]:
        with without_cudnn(), mode():
            yield

    return both
