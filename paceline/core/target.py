"""Define the interface between the engine and a target model with a KV cache.

`paceline.model.cached_lm.CachedLM` implements these protocols for transformers models. The engine,
the scheduler and the draft budget depend only on this module, not on model code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import CapacityError

if TYPE_CHECKING:
    from paceline.core.node_logits import NodeLogits
    from paceline.core.request import Request
    from paceline.core.tree import DraftTree


class Checkpoints(Protocol):
    """Copies of recurrent states at earlier text lengths, which allow prefix reuse.

    Attributes:
        max_bytes: Maximum size of all copies.
    """

    max_bytes: int


class CacheSlots(Protocol):
    """Assigns the slots of a KV cache to requests."""

    def __len__(self) -> int:
        """Return the total number of slots, taken and free."""

    @property
    def tokens(self) -> int:
        """Return the total number of tokens in all slots."""

    def inherit(self, request: Request, other: Request, length: int) -> None:
        """Move a slot from `other` to `request`, keeping `length` cache positions."""

    def copy(self, request: Request, other: Request, length: int) -> None:
        """Copy the first `length` cache positions of `other` into the slot of `request`."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Return the copies of recurrent states; many models have none."""

    @property
    def has_regions(self) -> bool:
        """Return True if slots may have different lengths."""

    @property
    def positions_taken(self) -> int:
        """Return the number of cache positions that belong to requests."""

    def length(self, request: Request) -> int:
        """Return the number of cache positions in a request's slot."""

    def lengthen(self, request: Request, positions: int) -> None:
        """Lengthen a request's slot to at least `positions` cache positions.

        This has no effect if all slots have the same length; see `has_regions`.
        """

    def shorten(self, request: Request) -> None:
        """Free the cache positions after a request's tokens.

        This has no effect if all slots have the same length; see `has_regions`.
        """

    def resize(self, slots: int, positions: int) -> None:
        """Resize the cache to the given numbers of slots and cache positions.

        `positions` is the number per slot or, if `has_regions` is true, for all slots together.
        """

    def gather(self, requests: Sequence[Request]) -> None:
        """Move the requests of one step to the first slots, in any order."""


class Target(Protocol):
    """A model with a KV cache that verifies draft trees.

    Attributes:
        slots: Slots of the KV cache, one per request.
        prefill_chunk: Maximum number of a request's pending tokens in one forward pass.
    """

    prefill_chunk: int

    @property
    def slots(self) -> CacheSlots:
        """Return the slots of the KV cache."""

    @property
    def model(self) -> Any:
        """Return the underlying model, to which drafters attach."""

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids that the logits cover."""

    @property
    def context_length(self) -> int:
        """Return the maximum length of a request, in tokens."""

    @property
    def forward_seconds(self) -> float:
        """Return the total seconds spent in forward passes."""

    @property
    def takes_trees(self) -> bool:
        """Return True if the model can verify trees, not just chains."""

    @property
    def packs(self) -> bool:
        """Return True if requests of different lengths can share a pass without padding."""

    @property
    def uses_target_states(self) -> bool:
        """Return True for a draft model that reads the target's hidden states (EAGLE)."""

    @property
    def stale(self) -> bool:
        """Return True if modules were replaced since the last request was opened."""

    @property
    def capacity(self) -> int:
        """Return the number of cache positions per slot.

        If `has_regions` is true, return the number in all slots together.
        """

    @property
    def position_bytes(self) -> int:
        """Return the size of one cache position, in bytes."""

    @property
    def state_bytes(self) -> int:
        """Return the size of one request's recurrent states, in bytes."""

    @property
    def keeps_states(self) -> bool:
        """Return True if some layers have recurrent states.

        Such a state is valid for only one text length.
        """

    def reusable_length(self, source: Request, length: int) -> int:
        """Return how many of the first `length` cached tokens another request can reuse.

        Args:
            source: Request with a slot.
            length: Number of leading tokens that `source` shares with the other request.
        """

    @property
    def growth_step(self) -> int:
        """Return the number of cache positions that the cache gains when it grows."""

    def preallocate(self, slots: int, positions: int, limit: int) -> None:
        """Prepare the cache for its maximum size, so that it never has to be copied.

        Args:
            slots: Maximum number of slots.
            positions: Maximum number of cache positions per slot.
            limit: Maximum number of cache positions in all slots together.
        """

    def check_length(self, request: Request) -> None:
        """Check that a request is not longer than the context.

        Raises:
            CapacityError: The request is too long.
        """

    def open(self, request: Request, slot_of: Request | None = None, length: int = 0) -> None:
        """Assign a slot to a request.

        Args:
            request: Request to process.
            slot_of: Finished request whose slot is reused; None selects an empty slot.
            length: Number of leading cache positions of `slot_of` to reuse.
        """

    def prefill_media(self, request: Request) -> None:
        """Run prefill for an open request up to its last image, video or audio clip.

        Raises:
            ConfigError: The model rejects the images, videos or audio.
            UnsupportedModelError: The text after the media cannot be generated losslessly.
        """

    def close(self, request: Request) -> None:
        """Free the slot of a request."""

    def forward_nodes(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
        num_top: int = 0,
    ) -> NodeLogits:
        """Run one forward pass over the requests' pending tokens and draft trees.

        Args:
            requests: Open requests.
            trees: Draft tree of each request.
            prefill_chunk: Maximum number of a request's pending tokens in this pass; None uses
                the target's `prefill_chunk`.
            reduced_logits: Whether to return logits only for a reduced vocabulary, if the LM head
                has one.
            num_top: Number of most likely tokens per row (`NodeLogits.top`) that the target also
                finds if it can do so at no extra cost, as in a CUDA graph; 0 for none.
        """

    def forward_with_states(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        layers: tuple[int, ...] = (),
        pending: bool = False,
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
        num_top: int = 0,
    ) -> NodeLogits:
        """Run `forward_nodes` and capture the hidden states that the LM head reads.

        Args:
            requests: Open requests.
            trees: Draft tree of each request.
            layers: Indices of layers whose inputs are also captured.
            pending: Whether to capture the states of all pending tokens, not just the newest.
            prefill_chunk: See `forward_nodes`.
            reduced_logits: See `forward_nodes`.
            num_top: See `forward_nodes`.
        """

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Keep the pending tokens and the accepted nodes of the last forward pass."""

    def rewind(self, request: Request, length: int) -> None:
        """Drop a request's cache from position `length` onwards."""

    def clear_after(self, request: Request) -> None:
        """Fill a request's slot with zeros beyond the cached tokens."""

    def undo(self, request: Request, length: int) -> None:
        """After a failed step, drop a request's cache beyond its first `length` tokens."""

    def limit_tree(self, tree: DraftTree, request: Request) -> DraftTree:
        """Return the part of a draft tree that the model can verify for the request."""

    def restart_if_due(self, request: Request) -> None:
        """Drop a request's cache if the text's new length changes the rotary frequencies."""

    def shares_prefix(self, request: Request, other: Request) -> bool:
        """Return True if two requests have the same keys and values for a common prefix."""


def require_context(request: Request, context_length: int) -> None:
    """Check that a request fits into a model's context.

    Args:
        request: Request to check.
        context_length: Length of the context, in tokens.
    Raises:
        CapacityError: The request is too long.
    """
    if len(request) > context_length:
        raise CapacityError(
            f"sequence {request.id} has {len(request)} tokens; the model's context is"
            f" {context_length}. Shorten the prompt."
        )
