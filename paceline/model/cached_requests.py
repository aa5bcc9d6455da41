"""Manage a model's requests in the slots of its KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.request import Request
from paceline.core.target_base import TargetBase
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.kv_cache.blocks import CacheSize
from paceline.kv_cache.region_cache import RegionCache
from paceline.kv_cache.settings import (
    CHECKPOINT_INTERVAL,
    MAX_POSITIONS,
    MAX_SLOTS,
    NODE_POSITIONS,
)
from paceline.kv_cache.slot_cache import SlotCache
from paceline.kv_cache.slots import Slots
from paceline.model.architecture import Architecture
from paceline.model.mixers.chain_pass import ChainPass
from paceline.model.mixers.seam import RecurrentPass
from paceline.model.mixers.settings import MAX_FED_AGAIN
from paceline.model.per_layer import key_shapes
from paceline.model.rotary import (
    cut_at_switch,
    restart_beyond_switch,
    same_rotary_frequencies,
)


class CachedRequests(TargetBase):
    """Manages the requests of one model and their slots in its KV cache.

    Args:
        model: Decoder-only model.
        architecture: Properties of the model.
        growth_step: Number of cache positions by which the cache grows at a time, if slots may
            differ in length. With None (default), all slots have the same length.
    Attributes:
        architecture: Properties of the model.
        slots: Cache slots and their requests.
    """

    def __init__(
        self, model: PreTrainedModel, architecture: Architecture, growth_step: int | None = None
    ) -> None:
        self.architecture = architecture
        maximum = CacheSize(
            MAX_SLOTS, min(architecture.context_length, MAX_POSITIONS) + NODE_POSITIONS
        )
        arguments = architecture.layers, _stores_per_block(model), architecture.states, maximum
        self._cache: SlotCache = (
            SlotCache(*arguments) if growth_step is None else RegionCache(*arguments, growth_step)
        )
        self.slots = Slots(self._cache)
        # Requests in the last forward pass, the number of pending tokens that it processed for each
        # request, and the updates of their recurrent states, in the same order.
        self._requests: list[Request] = []
        self._pending: list[int] | None = None
        self._recurrent: list[RecurrentPass | ChainPass] = []

    @property
    def context_length(self) -> int:
        """Return the maximum length of a request, in tokens."""
        return self.architecture.context_length

    @property
    def takes_trees(self) -> bool:
        """Return True if the model can verify trees, or False if it supports only chains."""
        return self.architecture.takes_trees

    def reserve(self, slots: int, positions: int) -> None:
        """Allocate cache memory for a number of slots in advance.

        Args:
            slots: Number of slots, one per request.
            positions: Number of cache positions per slot, for tokens and tree nodes.
        """
        self._cache.reserve(slots, positions)

    @property
    def capacity(self) -> int:
        """Return the number of cache positions per slot.

        If slots vary in length, return the number of cache positions of all slots together.
        """
        return self._cache.capacity

    @property
    def position_bytes(self) -> int:
        """Return the size of a cache position in bytes.

        Before the first forward pass, the result is an estimate.
        """
        return self._cache.position_bytes or self.architecture.position_bytes

    @property
    def state_bytes(self) -> int:
        """Return the size of a request's recurrent states in bytes.

        The result is 0 until the first commit.
        """
        return self._cache.state_bytes

    @property
    def keeps_states(self) -> bool:
        """Return True if any layer has recurrent states, which cannot be truncated."""
        return bool(self.architecture.states)

    def close(self, request: Request) -> None:
        """Free a request's slot."""
        if request.tainted or request.failure is not None:
            self.rewind(request, 0)
            self.clear_after(request)
        self.slots.free(request)

    def clear_after(self, request: Request) -> None:
        """Fill a request's slot with zeros beyond the cached tokens."""
        # Attention multiplies masked values by 0, which does not remove NaNs.
        if request.slot >= 0:
            self._cache.clear(request.slot, request.cached)

    @property
    def open_sequences(self) -> int:
        """Return the number of requests with a slot."""
        return self._cache.taken

    def limit_tree(self, tree: DraftTree, request: Request) -> DraftTree:
        """Limit a draft tree to the nodes that the model can verify.

        If the model supports only chains, the result is `DraftTree.best_chain`. In some models, the
        rotary frequencies of all tokens change beyond a certain text length. For such a model,
        nodes beyond this text length are removed.
        """
        if (switch := self.architecture.restart_length) is not None:
            tree = cut_at_switch(tree, request, switch)
        if self.slots.checkpoints.max_bytes and request.cached < request.prompt_length:
            return EMPTY_TREE  # so that the states stop at the end of the prompt, for a checkpoint
        if self.takes_trees:
            return tree
        if self.architecture.states and request.pending > MAX_FED_AGAIN:
            return EMPTY_TREE  # so that the states advance by all pending tokens
        return tree.best_chain()

    def restart_if_due(self, request: Request) -> None:
        """Drop a request's cache when its text requires different rotary frequencies."""
        if (switch := self.architecture.restart_length) is not None:
            restart_beyond_switch(request, switch)

    def shares_prefix(self, request: Request, other: Request) -> bool:
        """Return True if a common prefix has the same keys and values in both requests."""
        return same_rotary_frequencies(request, other, self.architecture.switch_lengths)

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Commit the pending tokens and the accepted nodes from the last forward pass.

        Args:
            accepted: Indices of the accepted nodes, in text order, for each request in that pass.
        """
        pending = self._pending
        assert pending is not None, "commit without forward"
        advanced = self._commit_states(accepted) if self.architecture.states else None
        # The node indices of a path ascend. If the last index is the path's length minus 1, the
        # nodes already follow the pending tokens without gaps.
        moves = [
            (request, request.cached + num_pending, path)
            for request, num_pending, path in zip(self._requests, pending, accepted, strict=True)
            if path and path[-1] >= len(path)
        ]
        if moves:
            self._move(moves)
        for row, (request, path) in enumerate(zip(self._requests, accepted, strict=True)):
            new = pending[row] + len(path) if advanced is None else advanced[row]
            request.cached += new
            if advanced is not None:
                self._save_states(request, new)

    def _move(self, moves: Sequence[tuple[Request, int, Sequence[int]]]) -> None:
        """Move the keys and values of accepted nodes directly after the committed tokens.

        Args:
            moves: For each move, the request, the cache position of node 0, and the accepted
                nodes.
        """
        longest = max(len(path) for _, _, path in moves)
        slots, sources, targets = [], [], []
        for request, first, path in moves:
            slots.append([request.slot])
            filler = longest - len(path)  # repeats the last move
            last = first + len(path) - 1
            sources.append([*(first + node for node in path), *[first + path[-1]] * filler])
            targets.append([*range(first, last + 1), *[last] * filler])
        self._cache.move(np.array(slots), np.array(sources), np.array(targets))

    def _commit_states(self, accepted: Sequence[Sequence[int]]) -> list[int]:
        """Advance the stored states by the accepted tokens.

        Returns:
            For each request, the number of tokens added to the states. The next forward pass
            processes the remaining tokens again.
        """
        advanced: list[int] = []
        for recurrent in self._recurrent:
            first = len(advanced)
            advanced += recurrent.commit(accepted[first : first + recurrent.num_requests])
        self._recurrent = []
        return advanced

    def _save_states(self, request: Request, num_new: int) -> None:
        """Save the recurrent states at the end of the prompt and at intervals within it.

        Args:
            request: Request whose states have advanced.
            num_new: Number of tokens by which the states have advanced.
        """
        cached = request.cached
        crossed = cached // CHECKPOINT_INTERVAL > (cached - num_new) // CHECKPOINT_INTERVAL
        if cached == request.prompt_length or (crossed and cached < request.prompt_length):
            self.slots.checkpoints.save(request)

    def reusable_length(self, source: Request, length: int) -> int:
        """Return how many of the first `length` cached tokens another request can reuse.

        Args:
            source: Request with a slot.
            length: Number of leading tokens that the requests have in common.
        """
        if self.architecture.clamps_prompts:
            length = min(length, source.prompt_length)
        return self.slots.reusable_length(source, length)

    def rewind(self, request: Request, length: int) -> None:
        """Drop a request's cache from position `length` onwards.

        A recurrent state is valid only for the exact text that it covers. If it covers more than
        `length` tokens, the whole cache of the request is dropped.
        """
        if length < request.cached and self.architecture.states:
            length = 0
            self._cache.clear_states(request.slot)
        request.cached = min(request.cached, length)

    def load(self, request: Request, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Copy existing keys and values of one layer to a request's cache slot.

        Once all layers have been copied, the caller sets `request.cached`.

        Args:
            request: Request with the slot.
            layer: Index of the layer.
            first: Cache position of the first key and value.
            keys: Keys of n positions, [heads, n, dim].
            values: Values of n positions, [heads, n, dim].
        """
        self._cache.write(request.slot, layer, first, keys, values)

    def load_states(self, request: Request, layer: int, states: Mapping[str, Tensor]) -> None:
        """Copy existing recurrent states of one layer to a request's cache slot.

        Args:
            request: Request with the slot.
            layer: Index of the layer.
            states: States by name, each [1, ...].
        """
        device = next(iter(states.values())).device
        slot = torch.tensor([request.slot], device=device)
        self._cache.state_layers[layer].hold(slot, states)

    def stored(self, request: Request) -> list[tuple[Tensor, Tensor] | None]:
        """Return views of a request's keys and values.

        Returns:
            Keys and values of each layer, each [heads, cached tokens, dim]; None for a layer that
            shares another layer's cache.
        """
        return self._cache.read(request.slot, request.cached)


def _stores_per_block(model: PreTrainedModel) -> int:
    """Return how many stores of a model's cache share one tensor.

    A store contains the keys or the values of one layer. On CUDA, all stores share one tensor if
    they have the same shape. The cache then moves positions with two operations in total, instead
    of two per store.
    """
    config = model.config.get_text_config(decoder=True)
    shapes = key_shapes(config)
    one_shape = len(shapes) == config.num_hidden_layers and len(set(shapes)) == 1
    return 2 * len(shapes) if model.device.type == "cuda" and one_shape else 1
