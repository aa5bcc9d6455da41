"""A key/value cache in slots: one row per sequence, preallocated, written in place, never
concatenated or copied whole.

A forward writes its query tokens behind each row's own length; `move` then takes the accepted tree
rows to the front (a chain needs none) and the rest is simply overwritten by the next forward.
Roll-back is a smaller length. Layers are full-length also for sliding windows: the mask carries the
window, so rejected tokens push nothing out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from paceline.backend.interface import RowMover
from paceline.backend.resolve import backend_of
from paceline.core.tree import IntArray

_SPARE = 64  # positions


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros of a dtype and device; on a CPU in pages that exist once they are written, so that
    growing holds no stream up.
    """
    with torch.inference_mode(
        False
    ):  # every forward writes to them, and not all are in inference mode
        if like.device.type != "cpu":
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        return (
            torch.from_numpy(np.zeros(math.prod(shape) * like.element_size(), dtype=np.uint8))
            .view(like.dtype)
            .view(shape)
        )


@dataclass(slots=True)
class WriteWindow:
    """Where the forward under way writes: set once per forward, read by every layer.

    Attributes:
        first, rows: the slots first .. first + rows - 1 take part.
        places: [rows, width], the cache position of each query column; [1, queries] where sequences
            are packed.
        slots: of the same shape, or [rows, 1], the slot of each.
        visible: how many positions the attention sees (the longest row's length + width).
    """

    first: int = 0
    rows: int = 0
    places: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    slots: IntArray = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))
    visible: int = 0
    in_order: bool = True  # columns are consecutive places in every row
    indices: dict[tuple[int, int, torch.device], Tensor] = field(default_factory=dict)


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [slots, heads, capacity, dim] each."""

    is_sliding = False
    is_croppable = True

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate from the first states seen: only they know the heads of this shard and their
        sizes.
        """
        owner = self._owner
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            _zeros(states, owner.slots, states.shape[1], owner.capacity, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True
        owner.invalidate_pointers()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new states of the window's rows; returns views of all positions the
        attention may see.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self._owner.window
        rows = slice(window.first, window.first + window.rows)
        if window.rows == 1 and window.in_order:
            start = int(window.places[0, 0])
            self.keys[rows, :, start : start + key_states.shape[2]] = key_states
            self.values[rows, :, start : start + value_states.shape[2]] = value_states
        else:
            index = self._owner.flat_index(
                window.slots, window.places, key_states.shape[1], key_states.device
            )
            for store, states in ((self.keys, key_states), (self.values, value_states)):
                store.view(-1, store.shape[-1]).index_copy_(
                    0, index, states.reshape(-1, states.shape[-1])
                )
        return self.keys[rows, :, : window.visible], self.values[rows, :, : window.visible]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys, for models that build their own mask."""
        return self._owner.window.visible, 0

    def get_seq_length(self) -> int:
        """Tokens in the longest row before this forward; none, where more are packed behind one
        another than any row has.
        """
        return max(0, self._owner.window.visible - int(self._owner.window.places.shape[-1]))

    def get_max_length(self) -> int:
        """Positions a row can hold."""
        return self._owner.capacity


class SlotCache(Cache):  # type: ignore[misc]
    """All layers, and which slots are taken.

    Args:
        layers: number of decoder layers.
    """

    def __init__(self, layers: int) -> None:
        self.slots = 0
        self.capacity = 0
        self.window = WriteWindow()
        self._free: list[int] = []
        self._mover: RowMover | None = None  # None after a reallocation
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    @property
    def position_bytes(self) -> int:
        """Bytes that a position of a slot takes in all layers; 0 before the first forward."""
        return sum(
            store.shape[1] * store.shape[3] * store.element_size() for store in self._stores()
        )

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for `slots` rows of `capacity` positions; grows, never shrinks, keeps what
        is stored.
        """
        if slots <= self.slots and capacity <= self.capacity:
            return
        new_slots = max(slots, self.slots)
        self._reallocate(slice(0, self.slots), new_slots, max(capacity, self.capacity))
        self._free.extend(range(self.slots, new_slots))
        self.slots = new_slots

    def compact(self, slots: int, capacity: int) -> dict[int, int]:
        """Make it exactly so large, with the rows that are taken in front.

        Args:
            slots, capacity: enough for them.
        Returns:
            new slots by old ones, of the rows that are taken.
        """
        taken = [slot for slot in range(self.slots) if slot not in self._free]
        self._reallocate(taken, slots, capacity)
        self.slots, self._free = slots, list(range(len(taken), slots))
        return {old: new for new, old in enumerate(taken)}

    def _reallocate(self, rows: slice | list[int], slots: int, capacity: int) -> None:
        """Copy `rows` into the first slots of new stores, a layer's at a time."""
        common = min(capacity, self.capacity)
        for layer in self.layers:
            if layer.is_initialized:
                for name in ("keys", "values"):
                    old = getattr(layer, name)[rows, :, :common]
                    new = _zeros(old, slots, old.shape[1], capacity, old.shape[3])
                    new[: len(old), :, :common] = old
                    setattr(layer, name, new)
        self.capacity = capacity
        self.invalidate_pointers()

    def invalidate_pointers(self) -> None:
        """Forget the addresses of stores that were reallocated."""
        self._mover = None

    def take(self) -> int:
        """The lowest free slot."""
        if not self._free:
            self.reserve(self.slots + 1, self.capacity)
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot; its rows will be overwritten."""
        self._free.append(slot)

    def exchange_free(self, taken: int, freed: int) -> None:
        """A sequence moved from slot `freed` into the free slot `taken`."""
        self._free.remove(taken)
        self._free.append(freed)

    @property
    def taken(self) -> int:
        """Slots in use."""
        return self.slots - len(self._free)

    def begin(
        self, first: int, rows: int, slots: IntArray, places: IntArray, in_order: bool
    ) -> None:
        """Say where the coming forward writes; see `WriteWindow`."""
        visible = int(places.max()) + 1
        if visible > self.capacity:
            # copies everything: engines reserve beforehand
            self.reserve(self.slots, visible + _SPARE)
        self.window = WriteWindow(first, rows, places, slots, visible, in_order)

    def flat_index(
        self, slots: IntArray, places: IntArray, heads: int, device: torch.device
    ) -> Tensor:
        """Row numbers in a layer seen as [slots * heads * capacity, dim].

        Args:
            slots, places: [n, width] each, or [n, 1] slots; the index is in the order of [n, heads,
                width].
        """
        key = (id(places), heads, device)
        index = self.window.indices.get(key)
        if index is None:
            flat = (
                (slots[:, None, :] * heads + np.arange(heads)[:, None]) * self.capacity
            ) + places[:, None, :]
            index = self.window.indices[key] = torch.from_numpy(flat.reshape(-1)).to(device)
        return index

    @torch.inference_mode()
    def write(self, slot: int, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Store states computed elsewhere, [heads, n, dim] each, at positions first .. first + n
        - 1 of one layer.
        """
        place = self.layers[layer]
        if not place.is_initialized:
            place.lazy_initialization(keys[None], values[None])
        for store, states in ((place.keys, keys), (place.values, values)):
            store[slot, :, first : first + states.shape[1]] = states

    @torch.inference_mode()
    def clear(self, slot: int, first: int) -> None:
        """Write zeros to the positions of a slot from `first` on."""
        for store in self._stores():
            store[slot, :, first:] = 0

    def read(self, slot: int, length: int) -> list[tuple[Tensor, Tensor] | None]:
        """Views of the first `length` positions of a slot, (keys, values) per layer; None where
        a layer stores nothing.
        """
        return [
            (layer.keys[slot, :, :length], layer.values[slot, :, :length])
            if layer.is_initialized
            else None
            for layer in self.layers
        ]

    @torch.inference_mode()
    def move(self, slots: IntArray, source: IntArray, target: IntArray) -> None:
        """Copy cache positions within slots, in every layer.

        Args:
            slots: [rows, 1].
            source: [rows, m], ascending.
            target: [rows, m], ascending; none lies behind its source.
        """
        if self._mover is None:
            stores = self._stores()
            if not stores:
                return
            self._mover = backend_of(stores[0].device).row_mover(stores)
        self._mover(slots.reshape(-1), source, target)

    def _stores(self) -> list[Tensor]:
        return [
            store
            for layer in self.layers
            if layer.is_initialized
            for store in (layer.keys, layer.values)
        ]

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for layer in self.layers:
            if layer.is_initialized:
                for store in (layer.keys, layer.values):
                    store[target, :, :length] = store[source, :, :length]

    @torch.inference_mode()
    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` positions of two slots (once when a sequence ends, never
        per step).
        """
        for layer in self.layers:
            if layer.is_initialized:
                for store in (layer.keys, layer.values):
                    kept = store[one, :, :length].clone()
                    store[one, :, :length] = store[other, :, :length]
                    store[other, :, :length] = kept
