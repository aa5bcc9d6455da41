"""A model as one of our forwards sees it: the same weights and hooks, with a configuration of its
own.

transformers' models look up their attention in `config` at every call. We choose ours per forward,
and others may run the same model meanwhile, in other threads or behind another engine; so every
`CachedLM` has a configuration of its own to choose in.
"""

from __future__ import annotations

import copy
from functools import partial
from types import MethodType
from typing import Any, Protocol

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from paceline.model.forward_arguments import cache_argument
from paceline.model.rotary import TextLengths, is_length_dependent, use_token_frequencies

_Children = dict[str, nn.Module | None]


class View(Protocol):
    """What our forwards need to know of a model."""

    @property
    def module(self) -> Any:
        """To be called in the place of the model."""

    @property
    def config(self) -> PretrainedConfig:
        """Its (text) configuration."""

    @property
    def cache_argument(self) -> str:
        """The name under which `module` takes the KV cache."""

    @property
    def stale(self) -> bool:
        """Whether it does not show the model as it is any more."""

    @property
    def text_lengths(self) -> TextLengths | None:
        """To be set before every forward of a model whose rotary frequencies depend on them;
        None for all other models.
        """


class ModelView:
    """Modules that hold a configuration, and those around them, once more; all others are the
    model's own.

    A copied module shares its parameters, buffers and hooks with the original. Compiled forwards
    are not taken over: graphs are recorded for the caller's inputs, and ours have a new shape at
    every step.

    Attributes:
        module: to be called in the place of the model.
        config: its (text) configuration; changes to it are seen by nobody else.
        cache_argument: the name under which `module` takes the KV cache.
        text_lengths: see `View`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._watched: list[tuple[_Children, list[nn.Module | None]]] = []
        self.text_lengths: TextLengths | None = None
        self.module: PreTrainedModel = self._seen(model, {}, {})
        self.config: PretrainedConfig = self.module.config.get_text_config(decoder=True)
        self.cache_argument = cache_argument(model)

    @property
    def stale(self) -> bool:
        """Whether modules of the model have been replaced since, for example by an adapter."""
        return any([*children.values()] != then for children, then in self._watched)

    def _seen(self, module: Any, copies: dict[int, Any], configs: dict[int, Any]) -> Any:
        """Return a copy of a module, or the module itself where nothing in it holds a
        configuration.

        Args:
            copies, configs: made so far, by the id of the original: what is one object in the model
                is one here.
        """
        if id(module) in copies:
            return copies[id(module)]
        children: _Children = module._modules
        now = [*children.values()]
        seen = [None if child is None else self._seen(child, copies, configs) for child in now]
        held = vars(module).get("config")
        if seen == now and not isinstance(held, PretrainedConfig):
            return module
        self._watched.append((children, now))
        twin = copies[id(module)] = module.__class__.__new__(module.__class__)
        own = vars(twin)
        own.update(
            vars(module), _modules=dict(zip(children, seen, strict=True)), _compiled_call_impl=None
        )
        if isinstance(held, PretrainedConfig):
            own["config"] = copy.deepcopy(held, configs)
        if isinstance(twin, PreTrainedModel):
            # What records outputs sits in the hooks, which are shared: installed twice, it would
            # record twice.
            own["_output_capturing_hooks_installed"] = True
        for name in (
            "forward",
            "_old_forward",
        ):  # accelerate gives modules a forward of their own, and keeps the first
            if name in own:
                own[name] = _rebound(own[name], module, twin)
        if is_length_dependent(twin):
            self.text_lengths = self.text_lengths or TextLengths()
            use_token_frequencies(twin, self.text_lengths)
        return twin


def _rebound(function: Any, module: nn.Module, twin: nn.Module) -> Any:
    """Return what a module calls as its forward, for its copy and not compiled."""
    function = getattr(function, "_torchdynamo_orig_callable", function)
    if isinstance(function, MethodType) and _is(function.__self__, module):
        return MethodType(function.__func__, twin)
    if isinstance(function, partial) and function.args and _is(function.args[0], module):
        return partial(function.func, twin, *function.args[1:], **function.keywords)
    return function


def _is(one: Any, module: nn.Module) -> bool:
    # the model itself may come as a weak reference
    return isinstance(one, nn.Module) and vars(one) is vars(module)
