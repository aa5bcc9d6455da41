"""Store the recurrent states of one decoder layer, one per slot.

A state is valid for exactly one text: the first `Request.cached` tokens of the slot's request.
Forward passes work on copies and leave the stored states unchanged. A commit then advances the
stored states. The state before the first token is zero, so new and running requests can share a
forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from paceline.kv_cache.slot_layer import SlotLayer, SlotMemory

States = Mapping[str, Tensor]
"""Recurrent states by name, each [rows, ...]."""

_CONVOLUTION, _RECURRENT = "convolution", "recurrent"


@dataclass(frozen=True, slots=True)
class StateKind:
    """Describes what a decoder layer with recurrent states stores in the cache.

    Attributes:
        num_states: Number of pairs of a convolution state and a recurrent state.
        has_keys: Whether the layer also keeps keys and values.
    """

    num_states: int
    has_keys: bool


class SlotOwner(Protocol):
    """The cache to which a layer with recurrent states belongs."""

    @property
    def slots(self) -> int:
        """Number of slots in the cache."""


@dataclass(frozen=True, slots=True)
class SlotCount:
    """A fixed number of slots, for state layers that do not belong to a cache."""

    slots: int


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """Recurrent states of one layer.

    transformers' recurrent modules (mixers) read and write the working states: copies of the stored
    states for the rows of one call. `load` sets the working states, and `working` returns them.

    Args:
        owner: Cache to which the layer belongs.
        num_states: Number of pairs of a convolution state and a recurrent state.
    Attributes:
        held: Stored states by name, [slots, ...]; empty before the first commit.
    """

    def __init__(self, owner: SlotOwner, num_states: int) -> None:
        self._slot_memory = owner
        self.held: dict[str, Tensor] = {}
        LinearAttentionLayer.__init__(self, number_of_states=num_states)

    def store(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return the stored states with this name, and allocate them on the first call.

        The stored states of all slots form one tensor, [slots, *shape], initially filled with
        zeros.
        """
        if name not in self.held:
            self.held[name] = _zeros((self._slot_memory.slots, *shape), dtype, device)
        return self.held[name]

    def rows(self, slots: Tensor) -> dict[str, Tensor]:
        """Return copies of the stored states of some slots.

        Args:
            slots: Slots to copy, int64 [rows].
        """
        return {name: states[slots] for name, states in self.held.items()}

    def load(self, states: States) -> None:
        """Set the states from which the next call of the recurrent module starts.

        `states` is empty if no states have been stored yet.
        """
        LinearAttentionLayer.__init__(self, number_of_states=self.number_of_states)
        for name, rows in states.items():
            kind, _, number = name.partition(".")
            index = int(number)
            self.device, self.has_previous_state[index] = rows.device, True
            if kind == _CONVOLUTION:
                self.dtype, self.conv_kernel_size[index] = rows.dtype, rows.shape[-1]
                self.conv_states[index] = rows
                self.is_conv_states_initialized[index] = True
            else:
                self.recurrent_states[index] = rows
                self.is_recurrent_states_initialized[index] = True

    def working(self) -> dict[str, Tensor]:
        """Return the working states by name, after the recurrent module has run."""
        kinds = ((_CONVOLUTION, self.conv_states), (_RECURRENT, self.recurrent_states))
        return {
            f"{kind}.{index}": states
            for kind, by_index in kinds
            for index, states in by_index.items()
            if states is not None
        }

    def hold(self, slots: Tensor, states: States) -> None:
        """Store states in the given slots.

        Args:
            slots: Slots, int64 [rows].
            states: States by name, each [rows, ...].
        """
        for name, rows in states.items():
            self.store(name, rows.shape[1:], rows.dtype, rows.device)[slots] = rows

    def clear(self, slot: int) -> None:
        """Reset the states of a slot to those of an empty text."""
        for states in self.held.values():
            states[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """Copy the states of one slot to another."""
        for states in self.held.values():
            states[target] = states[source]

    def swap(self, first: int, second: int) -> None:
        """Exchange the states of two slots."""
        for states in self.held.values():
            states[[first, second]] = states[[second, first]]

    def resize(self, slots_kept: slice | list[int], slots: int) -> None:
        """Change the number of slots, and move the states of `slots_kept` to the front."""
        for name, states in self.held.items():
            content = states[slots_kept]
            self.held[name] = _zeros((slots, *states.shape[1:]), states.dtype, states.device)
            self.held[name][: len(content)] = content

    @property
    def slot_bytes(self) -> int:
        """Return the size of one slot's states in bytes; 0 before the first commit."""
        return sum(states[:1].numel() * states.element_size() for states in self.held.values())


class MixedLayer(StateLayer, SlotLayer):
    """Cache layer that stores keys and values as well as recurrent states."""

    def __init__(self, owner: SlotMemory, num_states: int) -> None:
        SlotLayer.__init__(self, owner)
        StateLayer.__init__(self, owner, num_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Allocate memory for keys and values, or for the working states.

        transformers passes keys and values as positional arguments, and states as keyword
        arguments.
        """
        if args:
            SlotLayer.lazy_initialization(self, *args)
        else:
            StateLayer.lazy_initialization(self, **kwargs)

    def get_max_length(self) -> int:
        """Return the number of cache positions per slot."""
        return SlotLayer.get_max_length(self)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Not all forward passes that write to them are in inference mode.
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=dtype, device=device)
