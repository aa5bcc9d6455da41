"""Run each decoder layer of a `ModelView` in one compiled call.

A `ModelView` is a copy of a model that shares the model's weights. In a decoding step with few
rows, the overhead of separate module calls is as large as the time for the matrix products. A
backend may instead compute a whole layer in one call (`Backend.decoder_layers`), with
bit-identical results. In its first eligible forward pass, every layer runs both the modules and
the single call. If the results of any layer differ, all layers of the view run only their modules
from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from paceline.attention.forward import BY_POSITION
from paceline.backend.decoder_layer import DecoderLayer, DecoderLayers, LayerPass
from paceline.backend.overrides import LinearOverride, NormOverride
from paceline.backend.plain_tensors import PLAIN
from paceline.backend.products import Products
from paceline.kv_cache.slot_cache import SlotCache
from paceline.kv_cache.slot_layer import SlotLayer, WriteWindow
from paceline.model.forward_state import ForwardState
from paceline.model.layer_stack import stack_layers

# Layer classes that compute exactly what `DecoderLayer` describes, and layer classes for which this
# is true of the attention only.
_KINDS = frozenset(
    ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
)
_ATTENTION_KINDS = frozenset(
    ("MixtralDecoderLayer", "Qwen2MoeDecoderLayer", "Qwen3MoeDecoderLayer")
)
_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


def use_layer_calls(module: nn.Module, products: Products, state: ForwardState) -> None:
    """Replace the `forward` methods of supported decoder layers in a `ModelView`.

    Args:
        module: Copy of the model in the view.
        products: Implementation of the view's matrix products and norms.
        state: Forward state of the view.
    """
    twins = [twin for twin in module.modules() if is_known_layer(twin)]
    described = [_describe(twin, products) for twin in twins]
    layers = [layer for layer in described if layer is not None]
    if not layers or len(layers) < len(twins):
        return
    if [twin.self_attn.layer_idx for twin in twins] != list(range(len(twins))):  # type: ignore[union-attr]
        return
    runner = products.backend.decoder_layers(layers)
    if runner is None:
        return
    calls = LayerCalls(twins, runner, products, state)
    for index, twin in enumerate(twins):
        vars(twin)["forward"] = LayerForward(twin, index, calls)
    if not has_separate_feed_forward(twins[0]):
        stack_layers(module, twins, calls)


def is_known_layer(module: nn.Module) -> bool:
    """Return whether a module is a decoder layer whose computation is known."""
    kind = type(module)
    is_known = kind.__name__ in _KINDS or has_separate_feed_forward(module)
    return is_known and kind.__module__.startswith("transformers.models.")


def has_separate_feed_forward(layer: nn.Module) -> bool:
    """Return whether a backend computes only the attention part of a layer.

    The feed-forward part of such a layer is a mixture of experts, which its modules compute.
    """
    return type(layer).__name__ in _ATTENTION_KINDS


def _names_inside(twin: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the linear modules and of the modules that contain them.

    Only modules of the layer that the backend computes are included.
    """
    if has_separate_feed_forward(twin):
        return _ATTENTION, ("self_attn",)
    return (*_ATTENTION, *_FEED_FORWARD), ("self_attn", "mlp")


def _norm_names(twin: nn.Module) -> tuple[str, ...]:
    """Return the names of a layer's norms, ordered as in `DecoderLayer.norms`."""
    has_head_norms = hasattr(twin.self_attn, "q_norm")
    return (*_NORMS, *_HEAD_NORMS) if has_head_norms else _NORMS


def _describe(twin: nn.Module, products: Products) -> DecoderLayer | None:
    """Describe a layer if the backend computes all its modules; otherwise return None."""
    names, others = _names_inside(twin)
    # A program may have replaced the feed-forward part by another module.
    if not {name for name, _ in twin.named_modules()}.issuperset((*names, *others, *_NORMS)):
        return None
    if any("forward" in vars(part) for part in (twin, *map(twin.get_submodule, others))):
        return None
    modules = [twin.get_submodule(name) for name in names]
    norms = [vars(twin.get_submodule(name)).get("forward") for name in _norm_names(twin)]
    if not all(type(vars(module).get("forward")) is LinearOverride for module in modules):
        return None
    overrides = [norm for norm in norms if type(norm) is NormOverride]
    if len(overrides) < len(norms):
        return None
    attention: Any = twin.self_attn
    return DecoderLayer(
        tuple(norm.module for norm in overrides),
        tuple(norm.eps for norm in overrides),
        tuple(vars(module)["forward"].module for module in modules),
        getattr(twin.mlp, "act_fn", None),
        attention.head_dim,
        attention.scaling,
    )


class LayerCalls:
    """Runs the decoder layers of a `ModelView` with a backend's runner.

    A runner computes a whole layer in one call, instead of calling the layer's modules.

    Args:
        twins: All decoder layers of the view, which are copies of the model's layers.
        runner: The backend's runner of these layers.
        products: Implementation of the view's matrix products and norms.
        state: Forward state of the view.
    Attributes:
        runner: The backend's runner of these layers.
        is_usable: False once a result of the runner has differed from the modules' result.
        num_checked: Number of layers for which the two results have been compared.
    """

    def __init__(
        self,
        twins: Sequence[nn.Module],
        runner: DecoderLayers,
        products: Products,
        state: ForwardState,
    ) -> None:
        self.runner, self._state = runner, state
        self._min_rows, self._max_rows = products.min_rows, products.max_rows
        self.is_usable = True
        self.num_checked = 0
        self._num_layers = len(twins)
        inside = [
            twin.get_submodule(name)
            for twin in twins
            for name in (*chain(*_names_inside(twin)), *_norm_names(twin))
        ]
        self._hooks = [
            hooks
            for module in inside
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        # Inputs of the current forward pass, and whether the runner supports them.
        self._window: WriteWindow | None = None
        self._inputs: tuple[Any, ...] = (None, None, None)
        self._serves = False

    def serves(self, states: Tensor, named: dict[str, Any]) -> bool:
        """Return whether the runner can compute a layer with these arguments.

        If the arguments belong to a new forward pass, the method also prepares the runner for this
        pass.

        Args:
            states: Hidden states.
            named: Keyword arguments of the layer.
        """
        cache = named.get("cache", named.get("past_key_values"))
        metadata, angles, mask = self._inputs
        if (
            self._window is not getattr(cache, "window", None)
            or metadata is not self._state.metadata
            or angles is not named.get("position_embeddings")
            or mask is not named.get("attention_mask")
        ):
            self._inputs = (
                self._state.metadata,
                named.get("position_embeddings"),
                named.get("attention_mask"),
            )
            self._window = getattr(cache, "window", None)
            self._serves = isinstance(cache, SlotCache) and self._begin(states, cache)
        return self._serves and self.is_usable and not torch.is_grad_enabled()

    def serves_all(self, states: Tensor, named: dict[str, Any]) -> bool:
        """Return whether the runner computes all layers in one call; see `serves`."""
        return self.num_checked == self._num_layers and self.serves(states, named)

    def _begin(self, states: Tensor, cache: SlotCache) -> bool:
        """Prepare the runner for a forward pass; return False if the runner rejects it."""
        metadata, angles, mask = self._inputs
        window, layers = cache.window, cache.layers
        if metadata is None or angles is None or not self._is_usual():
            return False
        if len(layers) != self._num_layers or not self._supports(states, window, angles):
            return False
        if any(type(layer) is not SlotLayer or not layer.is_initialized for layer in layers):
            return False
        heads = layers[0].keys.shape[1]
        written = cache.flat_index(window.slots, window.positions, heads, states.device)
        stores = [(layer.keys, layer.values) for layer in layers]
        seen = window.first, window.start
        self.runner.begin(LayerPass(angles, mask, metadata, states.shape[1], written, seen, stores))
        return True

    def _supports(self, states: Tensor, window: WriteWindow, angles: tuple[Tensor, Tensor]) -> bool:
        """Return whether the runner supports the shapes and dtypes of a pass's tensors."""
        columns = states.shape[1]
        return (
            type(states) is Tensor
            and len(states) == 1
            and self._min_rows <= columns <= self._max_rows
            and self.runner.takes_rows(columns)
            and states.dtype == torch.bfloat16
            and window.gathered is None
            and window.positions.shape == (1, columns)
            and all(
                angle.shape[:2] == states.shape[:2]
                and angle.dtype == states.dtype
                and angle.is_contiguous()
                for angle in angles
            )
        )

    def _is_usual(self) -> bool:
        """Return whether the modules inside the layers are unchanged and have no hooks."""
        return (
            self._state.implementation == BY_POSITION
            and not any(self._hooks)
            and not torch_module._global_forward_hooks
            and not torch_module._global_forward_pre_hooks
            and self.runner.has_same_weights()
        )


class LayerForward:
    """The `forward` method of a decoder layer in a `ModelView`.

    Where possible, the method uses the backend's runner, which computes the layer in one call.
    Otherwise, the method calls the layer's modules.

    Args:
        twin: Decoder layer of the view, which is a copy of the model's layer.
        index: Index of the layer.
        calls: `LayerCalls` with the runner for all layers of the view.
    Attributes:
        calls: `LayerCalls` with the runner for all layers of the view.
        is_checked: Whether the runner's result has been compared with the modules' result.
    """

    def __init__(self, twin: nn.Module, index: int, calls: LayerCalls) -> None:
        self._forward: Callable[..., Any] = MethodType(type(twin).forward, twin)
        self._index, self.calls = index, calls
        self._twin: Any = twin if has_separate_feed_forward(twin) else None
        self.is_checked = False

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the layer's output, from the runner if possible."""
        if args or not self.calls.serves(hidden_states, kwargs):
            return self._forward(hidden_states, *args, **kwargs)
        if self.is_checked:
            return self._run(hidden_states)
        expected = self._forward(hidden_states, *args, **kwargs)
        result = self._run(hidden_states)
        self.is_checked = True
        self.calls.num_checked += 1
        if type(expected) not in PLAIN or not torch.equal(expected, result):
            self.calls.is_usable = False
        return expected

    def _run(self, states: Tensor) -> Tensor:
        """Return the output of the layer, computed by the backend's runner."""
        states = self.calls.runner.run(self._index, states.contiguous())
        if self._twin is None:
            return states
        rest: Tensor = self._twin.mlp(self._twin.post_attention_layernorm(states))
        return states + rest
