"""Wrap drafters in other drafters, and lock drafters that several engines use."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.util.threads import ForkableLock

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Attributes that a `DelegatingDrafter` copies from its inner drafter.
_COPIED = (
    *("name", "vocab_size", "ids_below", "columns", "node_rule", "budget", "top_k"),
    *("needs_predictions", "needs_draft_model", "draft_head"),
)


class DelegatingDrafter(Drafter):
    """Forwards every call to another drafter.

    Base class for drafters that observe, modify or combine other drafters.

    Args:
        inner: Drafter that receives the calls.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        for name in _COPIED:
            setattr(self, name, getattr(inner, name))

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Forward the call to the inner drafter."""
        self.inner.check_vocab_size(vocab_size, tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Forward the call to the inner drafter."""
        self.inner.check_tokenizer(tokenizer)

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Forward the call to the inner drafter."""
        self.inner.attach(target, tokenizer)

    def num_head_tokens(self) -> int:
        """Forward the call to the inner drafter."""
        return self.inner.num_head_tokens()

    def start(self, request: Request) -> None:
        """Forward the call to the inner drafter."""
        self.inner.start(request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Forward the call to the inner drafter."""
        return self.inner.propose(requests, max_nodes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Forward the call to the inner drafter."""
        self.inner.observe(outcomes)

    def draws(self, request: Request) -> bool:
        """Forward the call to the inner drafter."""
        return self.inner.draws(request)

    def stop(self, request: Request) -> None:
        """Forward the call to the inner drafter."""
        self.inner.stop(request)

    @property
    def forward_seconds(self) -> float:
        """Return the inner drafter's `forward_seconds`."""
        return self.inner.forward_seconds


# Keyed by drafter id; an entry exists for as long as an engine holds its lock.
_turns: WeakValueDictionary[int, RLock] = WeakValueDictionary()
_guard = ForkableLock()


def turn_of(drafter: Drafter) -> RLock:
    """Return the lock that engines hold while they use this drafter.

    Engines that share a drafter also share the lock, so a drafter's code needs no locking.
    """
    while isinstance(drafter, DelegatingDrafter):
        drafter = drafter.inner
    with _guard:
        return _turns.setdefault(id(drafter), RLock())
