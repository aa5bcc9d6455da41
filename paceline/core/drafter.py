"""The contract between a drafter and the step. A new method is one subclass with one required
method, `propose`.

Rules of `propose` (each checked, or held by a must-fail test):

1. one tree per sequence, in order, with at most `max_nodes[i]` nodes; 0 means an empty tree;
2. `parents[i] < i`, and siblings carry different tokens (probes, the last nodes of a tree, may
   repeat a sibling);
3. `probs[i]` is the distribution node i was really drawn from, given its ancestors and its earlier
   siblings (drawn without replacement: renormalised); drawn siblings come before guesses;
4. a drafter may choose how many tokens to draw, but never un-draws one it has drawn.

A wrong guess may only cost time. Nothing here mentions caches, masks or batches of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from paceline.core.node_rule import NodeRule
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.errors import ConfigError, DrafterError
from paceline.util.threads import ForkableLock
from paceline.util.token_ids import is_padded, size, token_ids_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The target's k most likely tokens after the root (row 0) and after every node i (row 1 + i),
    the likeliest first.

    Attributes:
        token_ids: [1 + n, k].
        probs: float32 [1 + n, k], by the softmax of the model's own logits: at temperature 1,
            without penalties. A row of zeros is not known, as in a replay.
    """

    token_ids: IntArray
    probs: npt.NDArray[np.float32]

    def of(self, rows: Sequence[int]) -> TopTokens:
        """Those of some rows, in their order."""
        return TopTokens(self.token_ids[rows], self.probs[rows])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the target said about one tree.

    Attributes:
        accepted: nodes on the accepted path, in order.
        new_token_ids: accepted tokens, then one chosen by the target (the bonus), cut at the end of
            the sequence; exactly what was appended.
        target_argmax: 1 + n tokens: the target's most likely one after the root and after EVERY
            node.
        target_top: its most likely tokens there, where the drafter's `top_k` asks for them.
        logprobs: per new token, where the request asks for them: token id -> log-probability,
            likeliest first.
        unclean: after some node, taken or not, the target's logits were not numbers;
            `target_argmax` has 0 there.
        foreseen: guesses of what the target says after the newest of `new_token_ids`, where the
            drafter asks for them (`num_head_tokens`).
    """

    request: Request
    tree: DraftTree
    accepted: list[int]
    new_token_ids: list[int]
    target_argmax: list[int]
    target_top: TopTokens | None = None
    logprobs: list[dict[int, float]] | None = None
    head_draft: DraftTree | None = None
    unclean: bool = False


class Drafter:
    """Guesses continuations. State belongs to sequences and is freed by `stop`.

    Attributes:
        name: the word used in messages and tables.
        vocab_size: size of the vocabulary the guesses come from, if the drafter has one of its own.
            The engine refuses a target with another vocabulary when it is built.
        ids_below: all guesses are ids below it, where that is known; a target with fewer tokens is
            refused likewise, unless the known tokenizer shows that only the padding of its rows
            differs.
        columns: branches of its trees that can be computed apart, by as many copies of the target
            (`paceline.engine.parallel`).
        node_rule: how many nodes are worth their forward; the engine asks for no more
            (`paceline.core.node_rule`).
        budget: the engine feeds as many nodes of its trees as pay for their forward, the first
            ones; none where drafting does not (`paceline.draft_budget.budget`). Its trees should
            carry confidence and have the likeliest paths first.
        top_k: how many of the target's most likely tokens after every node outcomes are to carry; 0
            = none, which is free.
        needs_predictions: it learns from what the target says behind guesses it did not keep
            (`target_argmax`), which no record of an answer has.
        foresight: file of the trained foresight that its `num_head_tokens` asks for; None = the
            model's own.
        needs_draft_model: of a class: `build` takes a draft model beside the options.
        takes_draft_model: of a class: `build` may be given one, too, and does without.
        needs_trained: of a class: it reads a file trained or built for the models at hand.
        needs_store: of a class: its option `datastore` must name a token store.
    """

    name: str = "drafter"
    vocab_size: int | None = None
    ids_below: int = 0
    columns: int = 1
    node_rule: NodeRule = NodeRule()
    budget: bool = False
    top_k: int = 0
    needs_predictions: bool = False
    draft_head: str | None = None
    needs_draft_model: ClassVar[bool] = False
    takes_draft_model: ClassVar[bool] = False
    needs_trained: ClassVar[bool] = False
    needs_store: ClassVar[bool] = False

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Prepare for a target with `vocab_size` rows in its LM head: guesses must be ids below.

        Args:
            tokenizer: of the prompts, where it is known: what was learnt with it fits under any
                padding of the rows.
        Raises:
            ConfigError: what the drafter has read is of another vocabulary; both sizes are named.
        """

    def check_tokenizer(self, tokenizer: Any) -> None:
        """An engine is being built for prompts of `tokenizer` (of transformers): guesses must be
        ids of the same one.

        Raises:
            DatastoreError, ConfigError: they are not, as far as the drafter knows; both
                fingerprints are named.
        """

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare a draft model for `target` (`engine/pairing`).

        Args:
            tokenizer: of the prompts, where it is known.
        Raises:
            ConfigError, UnsupportedModelError: the draft model cannot serve this target.
        """

    def num_head_tokens(self) -> int:
        """Say how many tokens ahead the outcomes of the next forward are to guess what follows the
        newest one; 0 = not at all.

        They are read off the target's hidden state (`paceline.draft_head`), which takes a fiftieth
        of a small model's forward for each token ahead; no more than it is worth
        (`DraftHead.levels`) are guessed.
        """
        return 0

    def start(self, request: Request) -> None:
        """The prompt of `request` is known: allocate its state.

        Where the target's hidden states are wanted, it sets `request.states` to a `HiddenStateLog`,
        which the steps then fill.
        """

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Guess how each sequence goes on.

        Args:
            seqs: sequences whose newest token is about to be fed to the target.
            max_nodes: per sequence the largest tree that will be verified.
        Returns:
            one tree per sequence, possibly empty.
        """
        raise NotImplementedError

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """The target has spoken and its tokens are appended: learn, roll back."""

    def draws(self, request: Request) -> bool:
        """Whether drafts of `request` come with their distributions: the text depends on those,
        so no clock may decide about them.
        """
        return False

    def stop(self, request: Request) -> None:
        """`request` has finished or was aborted: free everything that belongs to it."""

    @property
    def forward_seconds(self) -> float:
        """Seconds spent so far in forward passes of the drafter's own model."""
        return 0.0


class Plain(Drafter):
    """Proposes nothing: plain decoding."""

    name = "none"

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return one empty tree per sequence."""
        return [EMPTY_TREE] * len(requests)


def require_drafter(where: str, drafter: object) -> None:
    """Refuse what is no drafter.

    Raises:
        ConfigError: it is none; `where` names who wants one.
    """
    if not isinstance(drafter, Drafter):
        raise ConfigError(
            f"{where}: got {drafter!r}; expected a Drafter object. Make one with"
            " paceline.drafters.create('name')."
        )


_PASSED_ON = (
    "name",
    "vocab_size",
    "ids_below",
    "columns",
    "node_rule",
    "budget",
    "top_k",
    "needs_predictions",
    "needs_draft_model",
    "draft_head",
)


class DelegatingDrafter(Drafter):
    """Passes everything on to another drafter. For those that watch, change or combine what a
    drafter does.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        for name in _PASSED_ON:
            setattr(self, name, getattr(inner, name))

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Pass on."""
        self.inner.check_vocab_size(vocab_size, tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Pass on."""
        self.inner.check_tokenizer(tokenizer)

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Pass on."""
        self.inner.attach(target, tokenizer)

    def num_head_tokens(self) -> int:
        """As far as the inner drafter wants."""
        return self.inner.num_head_tokens()

    def start(self, request: Request) -> None:
        """Pass on."""
        self.inner.start(request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Pass on."""
        return self.inner.propose(requests, max_nodes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Pass on."""
        self.inner.observe(outcomes)

    def draws(self, request: Request) -> bool:
        """Pass on."""
        return self.inner.draws(request)

    def stop(self, request: Request) -> None:
        """Pass on."""
        self.inner.stop(request)

    @property
    def forward_seconds(self) -> float:
        """Those of the inner drafter."""
        return self.inner.forward_seconds


_turns: WeakValueDictionary[int, RLock] = (
    WeakValueDictionary()
)  # by the id of the drafter, as long as an engine holds it
_guard = ForkableLock()


def turn_of(drafter: Drafter) -> RLock:
    """Return the lock that engines with this drafter hold in their steps: drafters need not know
    of threads.
    """
    while isinstance(drafter, DelegatingDrafter):
        drafter = drafter.inner
    with _guard:
        return _turns.setdefault(id(drafter), RLock())


@contextmanager
def assert_tokens_unchanged(drafter: Drafter, requests: Sequence[Request]) -> Iterator[None]:
    """Hold a call of a drafter to leaving the tokens of sequences as they are.

    Raises:
        DrafterError: it has changed some, which would be said in the model's name.
    """
    before = [request.token_ids[:] for request in requests]
    yield
    for request, tokens in zip(requests, before, strict=True):
        if request.token_ids != tokens:
            raise DrafterError(
                f"drafter {drafter.name!r}: got changed token_ids of sequence {request.id};"
                " expected them as they were. Copy them."
            )


def check_vocabulary(drafter: Drafter, vocab: int, tokenizer: Any = None) -> None:
    """Hold the drafter's vocabulary, if it has one, against the target's of `vocab` tokens; once,
    when an engine is built.

    Args:
        tokenizer: of the prompts, where it is known.
    Raises:
        ConfigError: they differ, or the drafter's guesses may be beyond the target's; both sizes
            are named. And what `check_vocab_size` raises.
    """
    if drafter.ids_below > vocab and not _differ_by_padding(drafter.ids_below, vocab, tokenizer):
        raise ConfigError(
            f"drafter {drafter.name!r}: got guesses from a vocabulary of {drafter.ids_below}"
            f" tokens; expected at most {vocab},"
            " the target's. Use a datastore built with the target's tokenizer."
        )
    if drafter.vocab_size not in (None, vocab):
        raise ConfigError(
            f"drafter {drafter.name!r}: got a vocabulary of {drafter.vocab_size} tokens; expected"
            f" {vocab}, the target's."
            " Choose a draft model of the target's family."
        )
    drafter.check_vocab_size(vocab, tokenizer)


def _differ_by_padding(one: int, other: int, tokenizer: Any) -> bool:
    """Whether two sizes may both be those of a tokenizer's vocabulary under another padding."""
    known = token_ids_of(tokenizer)
    return known is not None and is_padded(one, size(known)) and is_padded(other, size(known))
