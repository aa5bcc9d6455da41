"""Replace the `forward` methods of the recurrent mixers in a `ModelView`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.experts import is_depthwise
from paceline.backend.overrides import ForwardOverride
from paceline.kv_cache.state_layer import StateKind, StateLayer
from paceline.model.mixers.mixer import Mixer, StateUpdate
from paceline.model.mixers.recurrence import recurrence_mixer
from paceline.model.mixers.recurrent_batch import RecurrentBatch
from paceline.model.mixers.upstream import UpstreamMixer
from paceline.model.mixers.window import window_mixer


@dataclass(frozen=True, slots=True)
class RecurrentPass:
    """Collects the state updates of one forward pass through the recurrent layers.

    Attributes:
        batch: Tokens of the forward pass.
        layers: Stored states by layer index.
        updates: State updates that the mixers returned, by layer index and by the mixer's index
            within the layer. The commit applies them.
        folds: Whether every mixer adds accepted nodes to the stored states.
    """

    batch: RecurrentBatch
    layers: Mapping[int, StateLayer]
    folds: bool
    updates: dict[tuple[int, int], StateUpdate] = field(default_factory=dict)

    @property
    def num_requests(self) -> int:
        """Return the number of requests in the forward pass."""
        return len(self.batch.slots)

    def commit(self, accepted: Sequence[Sequence[int]]) -> list[int]:
        """Advance the stored states of all layers by the committed tokens.

        Args:
            accepted: Accepted nodes of each request, in text order.
        Returns:
            Number of tokens added to the stored states, for each request.
        """
        for (index, _), update in self.updates.items():
            update.commit(self.layers[index], self.batch, accepted)
        return [
            count + (len(path) if self.folds else 0)
            for count, path in zip(self.batch.pending.tolist(), accepted, strict=True)
        ]


class RecurrentState(Protocol):
    """The fields of `ForwardState` that the recurrent mixers of a `ModelView` read.

    Attributes:
        folds: Whether every mixer of the view adds accepted nodes to the stored states.
        recurrent: The current forward pass; None means that mixers run as in transformers.
    """

    folds: bool
    recurrent: RecurrentPass | None


class MixerForward:
    """Replaces the `forward` method of a recurrent mixer in a `ModelView`.

    Args:
        twin: Copy of the mixer in the view.
        mixer: Implementation that runs over a batch of trees.
        state: Forward state of the view.
    Attributes:
        mixer: Implementation that runs over a batch of trees.
    """

    def __init__(self, twin: nn.Module, mixer: Mixer, state: RecurrentState) -> None:
        self._forward = vars(twin).get("forward") or MethodType(type(twin).forward, twin)
        self._index: int = twin.layer_idx  # type: ignore[assignment]
        self._number: int = getattr(twin, "conv_idx", 0)
        self.mixer, self._state = mixer, state
        state.folds = state.folds and mixer.folds

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run `mixer`, and return a result of the same kind as the module's own `forward`."""
        current = self._state.recurrent
        if current is None:
            return self._forward(hidden_states, *args, **kwargs)
        rest: list[tuple[Any, ...]] = []

        def call(hidden: Tensor) -> Tensor:
            result = self._forward(hidden, *args, **kwargs)
            if isinstance(result, Tensor):
                return result
            rest.append(result[1:])
            output: Tensor = result[0]
            return output

        layer = current.layers[self._index]
        output, update = self.mixer(hidden_states, current.batch, layer, call)
        current.updates[self._index, self._number] = update
        return (output, *rest[0]) if rest else output


def mixers_of(model: PreTrainedModel, states: Mapping[int, StateKind]) -> dict[int, nn.Module]:
    """Return the mixer of each layer with recurrent states, by layer index.

    A mixer replaces a layer's attention or the attention's projections. It contains a depthwise
    convolution and has a layer index. If any layer does not have exactly one such module, the
    states of this layer cannot be separated from attention. The function then returns an empty
    dictionary.

    Args:
        model: Model to search.
        states: Kind of recurrent state in each recurrent layer, by layer index.
    """
    candidates: dict[int, list[nn.Module]] = {index: [] for index in states}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if index in candidates and any(map(is_depthwise, module.children())):
            parameters = inspect.signature(module.forward).parameters
            is_mixer = "attention_mask" in parameters or window_mixer(module) is not None
            candidates[index] += [module] if is_mixer else []
    if any(len(modules) != 1 for modules in candidates.values()):
        return {}
    return {index: modules[0] for index, modules in candidates.items()}


def convolutions_of(model: PreTrainedModel, states: Mapping[int, StateKind]) -> list[nn.Module]:
    """Return a model's short convolutions if all recurrent states belong to them.

    The result is empty if any state belongs to another module.

    Args:
        model: Model to search.
        states: Kind of recurrent state in each recurrent layer, by layer index.
    """
    convolutions = [
        module
        for module in model.modules()
        if getattr(module, "layer_idx", None) in states
        and hasattr(module, "conv_idx")
        and any(map(is_depthwise, module.children()))
        and recurrence_mixer(module) is not None
    ]
    count = sum(kind.num_states for kind in states.values())
    return convolutions if len(convolutions) == count else []


def mixer_for(twin: nn.Module, override: ForwardOverride | None = None) -> Mixer:
    """Choose how to run a recurrent mixer over pending tokens and draft trees.

    Args:
        twin: Copy of the mixer in the `ModelView`.
        override: Replacement for functions that the mixer's own code calls; None means torch's
            functions.
    """
    return recurrence_mixer(twin, override) or window_mixer(twin) or UpstreamMixer(twin)
