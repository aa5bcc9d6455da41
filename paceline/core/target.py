"""Define what the engine needs of a target model with a KV cache.

`paceline.model.cached_lm.CachedLM` implements these protocols for transformers models. The engine,
the scheduler and the draft budget depend on this module and on no model code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paceline.core.node_logits import NodeLogits
    from paceline.core.request import Request
    from paceline.core.tree import DraftTree


class CacheSlots(Protocol):
    """Assign the slots of a KV cache to requests."""

    def __len__(self) -> int:
        """Return the number of slots, taken and free."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all slots."""

    def inherit(self, request: Request, other: Request, length: int) -> None:
        """Give `request` the slot of `other` with its first `length` cache positions."""

    def copy(self, request: Request, other: Request, length: int) -> None:
        """Copy the first `length` cache positions of `other` to the slot of `request`."""

    def resize(self, slots: int, positions: int) -> None:
        """Change the cache to this number of slots and of cache positions per slot."""

    def gather(self, requests: Sequence[Request]) -> None:
        """Move the requests of one step to the first slots, in any order."""


class Target(Protocol):
    """A model with a KV cache that verifies draft trees.

    Attributes:
        slots: Slots of its KV cache.
        prefill_chunk: Maximum pending tokens of a request in one forward pass.
    """

    prefill_chunk: int

    @property
    def slots(self) -> CacheSlots:
        """Return the slots of the KV cache."""

    @property
    def model(self) -> Any:
        """Return the model itself, as drafters see it."""

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids that logits cover."""

    @property
    def context_length(self) -> int:
        """Return the maximum length of a request in tokens."""

    @property
    def forward_seconds(self) -> float:
        """Return the total seconds spent in forward passes."""

    @property
    def takes_trees(self) -> bool:
        """Return True if the model verifies trees; False = chains only."""

    @property
    def packs(self) -> bool:
        """Return True if requests of any widths share a forward pass without padding."""

    @property
    def uses_target_states(self) -> bool:
        """Return True for a draft model that reads the target's hidden states (EAGLE)."""

    @property
    def stale(self) -> bool:
        """Return True if modules were replaced since a request was opened last."""

    @property
    def capacity(self) -> int:
        """Return the cache positions allocated per slot."""

    @property
    def position_bytes(self) -> int:
        """Return the bytes that one cache position takes."""

    def check_length(self, request: Request) -> None:
        """Refuse a request that is longer than the context.

        Raises:
            CapacityError: the request is too long.
        """

    def open(self, request: Request, slot_of: Request | None = None, length: int = 0) -> None:
        """Give a request a slot, or the slot of an ended request with its first positions."""

    def close(self, request: Request) -> None:
        """Free the slot of a request."""

    def forward_nodes(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
    ) -> NodeLogits:
        """Run one forward pass over pending tokens and draft trees of the requests."""

    def forward_with_states(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        layers: tuple[int, ...] = (),
        pending: bool = False,
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
    ) -> NodeLogits:
        """Run `forward_nodes` and capture the hidden states that the LM head reads."""

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Keep the pending tokens and the accepted nodes of the last forward pass."""

    def rewind(self, request: Request, length: int) -> None:
        """Drop the cache of a request from position `length` on."""

    def clear_after(self, request: Request) -> None:
        """Zero the slot of a request after its cached tokens."""

    def limit_tree(self, tree: DraftTree, request: Request) -> DraftTree:
        """Return the part of a draft tree that the model can verify after the request."""

    def restart_if_due(self, request: Request) -> None:
        """Drop the cache of a request whose new length changes how its tokens are encoded."""

    def shares_prefix(self, request: Request, other: Request) -> bool:
        """Return True if equal first tokens of two requests have equal keys and values."""
