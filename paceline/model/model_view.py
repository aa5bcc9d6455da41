"""Build views: callable copies of a model that share its weights.

A transformers model looks up its attention function in `config` at every call. The engine chooses
the attention function for each forward pass, while other threads or engines may be running the same
model. Every `CachedLM` therefore has a view with a separate configuration, separate matrix products
and a separate `ForwardState`. A view shares weights and hooks with the user's model, and does not
modify that model.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Set
from functools import partial
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from paceline.attention.forward import STATE
from paceline.backend.products import Products
from paceline.model.forward_arguments import cache_argument
from paceline.model.forward_state import ForwardState, StateReader
from paceline.model.layer_forward import use_layer_calls
from paceline.model.layer_kinds import states_of
from paceline.model.mixers.seam import MixerForward, convolutions_of, mixer_for, mixers_of
from paceline.model.rotary import TextLengths, is_length_dependent, use_token_frequencies

_Children = dict[str, nn.Module | None]
# Packages whose modules never change their attributes after construction. Modules from other
# packages can change at any time: adapters are switched, and paceline's state readers are attached
# to a target.
_STEADY = ("torch", "transformers")


def use_attention(view: ModelView, implementation: str) -> None:
    """Choose the attention function that the layers of a `ModelView` call.

    Args:
        view: View of a model.
        implementation: Name of the function in transformers' table.
    """
    # Reading the name from the state takes less time than reading it from the configuration.
    if view.state.implementation != implementation:
        view.config._attn_implementation = view.state.implementation = implementation


class ModelView:
    """A view of a transformers model, with copies of some of its modules.

    The view copies three kinds of modules: those with a configuration, those that read the
    `ForwardState`, and those whose matrix products the view replaces. It also copies the modules
    that contain such modules. A copied module shares its parameters, buffers and hooks with the
    original. The view does not copy compiled `forward` methods. They were compiled for the caller's
    inputs, but the shape of paceline's inputs changes at every step.

    Args:
        model: Model to view.
        products: Implementation of matrix products and norms. Default: torch's products and norms.
    Attributes:
        module: Copy of the model.
        config: The copy's (text) configuration; changes to it affect only this view.
        state: `ForwardState` that the copies read.
        cache_argument: Name of the KV cache argument of `module`.
        has_mixers: Whether the view replaces the `forward` methods of recurrent mixers
            (`mixers.seam`).
    """

    def __init__(self, model: PreTrainedModel, products: Products | None = None) -> None:
        states = states_of(model)
        mixers = mixers_of(model, states).values() or convolutions_of(model, states)
        self._copier = ModuleCopier(products or Products(), {*map(id, mixers)})
        self.state = self._copier.state
        self.has_mixers = bool(mixers)
        self.module: PreTrainedModel = self._copier.copy_of(model)
        use_layer_calls(self.module, products or Products(), self.state)
        self.config: PretrainedConfig = self.module.config.get_text_config(decoder=True)
        self.cache_argument = cache_argument(model)

    @property
    def stale(self) -> bool:
        """True if modules were replaced after the copy, for example by an adapter."""
        return self._copier.stale


class ModuleCopier:
    """Copies modules for one `ModelView`.

    Args:
        products: Implementation of the view's matrix products and norms.
        mixers: Ids of the mixers whose `forward` the copies replace (`mixers.seam`); None means no
            mixers.
    Attributes:
        state: `ForwardState` that the copies read.
    """

    def __init__(self, products: Products, mixers: Set[int] | None = None) -> None:
        self._products, self._mixers = products, mixers or frozenset()
        self.state = ForwardState(linear=products.linear)
        # By id of the original: one object in the model corresponds to one object in the view.
        self._copies: dict[int, Any] = {}
        self._configs: dict[int, Any] = {}
        self._configured: set[int] = set()  # ids of originals with a configuration inside
        self._watched: list[tuple[_Children, list[nn.Module | None]]] = []
        self._overridden: list[dict[str, Any]] = []  # attributes of overridden originals

    @property
    def stale(self) -> bool:
        """True if a child module or the `forward` method of a copied module was replaced."""
        return any([*children.values()] != then for children, then in self._watched) or any(
            "forward" in attributes for attributes in self._overridden
        )

    def copy_of(self, module: Any) -> Any:
        """Return a copy of a module, or the module itself if nothing needs copying."""
        if id(module) in self._copies:
            return self._copies[id(module)]
        children: _Children = module._modules
        originals = [*children.values()]
        copies = [None if child is None else self.copy_of(child) for child in originals]
        config, override = vars(module).get("config"), self._products.override(module)
        if (
            isinstance(config, PretrainedConfig)
            or id(module) in self._mixers
            or any(id(child) in self._configured for child in originals)
        ):
            self._configured.add(id(module))
        elif copies == originals and override is None and not isinstance(module, StateReader):
            return module
        self._watched.append((children, originals))
        if override is not None:
            self._overridden.append(vars(module))
        steady = override is not None or id(module) in self._configured or is_steady(module)
        twin = _copy(module) if steady else _live_copy(module)
        self._copies[id(module)] = twin
        attributes = vars(twin)
        attributes.update(_modules=dict(zip(children, copies, strict=True)))
        attributes.update({"_compiled_call_impl": None, STATE: self.state})
        if isinstance(config, PretrainedConfig):
            attributes["config"] = copy.deepcopy(config, self._configs)
        if isinstance(twin, PreTrainedModel):
            # Output recorders are among the shared hooks: installed twice, they would record twice.
            attributes["_output_capturing_hooks_installed"] = True
        # accelerate replaces modules' `forward`, and keeps the original as `_old_forward`.
        for name in ("forward", "_old_forward"):
            if name in vars(module):
                attributes[name] = _rebound(vars(module)[name], module, twin)
        if override is not None and id(module) not in self._mixers:
            attributes["forward"] = override.in_view(twin)
        elif "_orig_mod" in children:  # a module that torch.compile returned
            attributes["forward"] = attributes["_modules"]["_orig_mod"]
        if id(module) in self._mixers:
            attributes["forward"] = MixerForward(twin, mixer_for(twin, override), self.state)
        if is_length_dependent(twin):
            self.state.text_lengths = self.state.text_lengths or TextLengths()
            use_token_frequencies(twin, self.state.text_lengths)
        return twin


def _rebound(function: Any, module: nn.Module, twin: nn.Module) -> Any:
    """Return a module's uncompiled `forward`, bound to the module's copy."""
    function = getattr(function, "_torchdynamo_orig_callable", function)
    if isinstance(function, types.MethodType) and _is(function.__self__, module):
        return types.MethodType(function.__func__, twin)
    if isinstance(function, partial) and function.args and _is(function.args[0], module):
        return partial(function.func, twin, *function.args[1:], **function.keywords)
    return function


def _is(candidate: Any, module: nn.Module) -> bool:
    # the model itself may be passed as a weak reference
    return isinstance(candidate, nn.Module) and vars(candidate) is vars(module)


def is_steady(module: nn.Module) -> bool:
    """Return whether a module never changes its attributes after construction."""
    return type(module).__module__.partition(".")[0] in _STEADY


def _copy(module: nn.Module) -> nn.Module:
    twin: nn.Module = module.__class__.__new__(module.__class__)
    vars(twin).update(vars(module))
    return twin


# Attributes that torch itself reads at every call. All except the `training` flag are objects that
# are never replaced.
_SHARED = tuple(name for name in vars(nn.Module()) if name != "training")


def _live_copy(module: nn.Module) -> nn.Module:
    """Return a copy that reads and writes its attributes in the original module.

    Changes in the original module, such as an adapter that is switched off, also affect the copy.
    """
    kind, attributes = type(module), vars(module)

    def read(self: nn.Module, name: str) -> Any:
        if name in attributes:
            return attributes[name]
        return kind.__getattr__(self, name)

    def write(self: nn.Module, name: str, value: Any) -> None:
        setattr(module, name, value)

    live: Any = types.new_class(kind.__name__, (kind,))
    live.__getattr__, live.__setattr__ = read, write
    twin: nn.Module = live.__new__(live)
    vars(twin).update({name: attributes[name] for name in _SHARED if name in attributes})
    return twin
