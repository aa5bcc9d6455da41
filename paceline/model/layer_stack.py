"""Run all decoder layers of a `ModelView` in one compiled call.

transformers' models loop over a list of layers. In a view, this list yields a single function that
runs all layers, which avoids the overhead of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from paceline.backend.decoder_layer import DecoderLayers


class _Calls(Protocol):
    """The methods of `LayerCalls` that a `LayerStack` calls."""

    runner: DecoderLayers

    def serves_all(self, states: Tensor, named: dict[str, Any]) -> bool:
        """Return whether the runner computes all layers in one call."""


def stack_layers(module: nn.Module, twins: Sequence[nn.Module], calls: _Calls) -> None:
    """Replace the list of decoder layers in a `ModelView` with a `LayerStack`.

    The list stays unchanged if the layers have several kinds of attention, because such layers need
    different masks.

    Args:
        module: Copy of the model in the view.
        twins: The view's copies of all layers.
        calls: Runner that computes all layers in one call.
    """
    for parent in list(module.modules()):
        kinds = set(getattr(getattr(parent, "config", None), "layer_types", None) or ())
        for name, child in parent._modules.items():
            if type(child) is nn.ModuleList and list(child) == list(twins) and len(kinds) <= 1:
                parent._modules[name] = LayerStack(twins, calls)


class LayerStack(nn.ModuleList):
    """The decoder layers of a `ModelView`.

    A slice of all layers has a single element: a function that runs all of them.

    Args:
        twins: Copies of all layers in the view.
        calls: Runner of the layers.
    """

    def __init__(self, twins: Sequence[nn.Module], calls: _Calls) -> None:
        super().__init__(twins)
        self._calls = calls
        self._hooks = [
            hooks for twin in twins for hooks in (twin._forward_hooks, twin._forward_pre_hooks)
        ]

    def __getitem__(self, index: int | slice) -> Any:
        """Return one layer or a list of layers.

        For a slice of all layers, the list contains one function, which runs all layers.
        """
        if not isinstance(index, slice):
            return super().__getitem__(index)
        layers: Sequence[Callable[..., Tensor]] = list(self)[index]
        return [self._run] if len(layers) == len(self) else layers

    def _run(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run all layers, in one call if possible; return the output of the last layer."""
        if not args and not any(self._hooks) and self._calls.serves_all(hidden_states, kwargs):
            return self._calls.runner.run_all(hidden_states.contiguous())
        for layer in self:
            hidden_states = layer(hidden_states, *args, **kwargs)
        return hidden_states
