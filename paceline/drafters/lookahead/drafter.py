"""Draft n-grams with the target itself: Lookahead Decoding (Fu et al. 2024).

As in algorithm 1 of the paper, every forward pass processes two groups of draft nodes:

- A window of guessed tokens for the next positions (section 3.1, the lookahead branch:
  `window.py`). The target's predictions at the window's newest level complete W n-grams per step.
  The drafter stores these n-grams in a pool.
- Up to G n-grams from the pool that start with the newest token (section 3.2, the verification
  branch). These n-grams are called guesses.

Algorithms 3 and 4 in the paper correspond to the verification code shared by all drafters.

This drafter differs from the authors' code in the following points. `reference_mode=true` disables
all of them:

- If a whole n-gram is accepted, the target's next token is also emitted, as in algorithm 3.
- Guesses and the window share the nodes of common prefixes. The nodes saved in this way are used
  to extend the first guesses with n-grams from the pool.
- Window nodes can be accepted. The window is full and guesses are verified from the first step on.
- The drafter first looks up the two newest tokens in the pool, then the newest token alone. If the
  pool has too few n-grams for these keys, the drafter also uses n-grams that contain the newest
  token at a later position.
- Text that the target has confirmed is also added to the pool. There, it becomes the newest n-gram
  of the key that precedes it. A guess whose first token was wrong is removed from the pool until it
  is generated again.
- The window is omitted while many tokens per step are accepted, and at the end of the answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.drafter import Drafter, Outcome
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.core.tree_builder import TreeBuilder
from paceline.drafters.lookahead.options import LookaheadOptions
from paceline.drafters.lookahead.settings import EXTENDED_GUESSES
from paceline.drafters.lookahead.window import LookaheadWindow
from paceline.drafters.shared.ngram_pool import Ngram, NgramPool

__all__ = ["Lookahead", "LookaheadOptions"]

WINDOW_LEFT_OUT = "window_left_out"  # counts the steps in which the window exceeded max_nodes


@dataclass(slots=True)
class _State:
    """The lookahead window, n-grams and newest tree of one request.

    Attributes:
        window: Lookahead window. None if the target can verify only chains, because a chain cannot
            contain the window.
        pool: N-grams, keyed by the one or two tokens before each n-gram.
        inner_ngrams: Suffixes of the window's n-grams, for keys that the pool lacks. The n-gram
            1 2 3 yields 2 3 for the key 1, and 3 for the key 2.
        drops_wrong_guesses: Whether wrong guesses are removed from the pool; false for a shared
            pool.
        pooled_tokens: Number of text tokens whose n-grams are in the pool.
        accepted: Number of tokens accepted in the last step.
        tree: Last proposed tree.
        newest_level: Nodes of `tree` that form the newest level of the window; None if `tree` does
            not contain the window.
        guesses: N-grams from the pool that `tree` contains as guesses.
    """

    window: LookaheadWindow | None
    pool: NgramPool
    inner_ngrams: NgramPool
    drops_wrong_guesses: bool
    pooled_tokens: int = 0
    accepted: int = 0
    tree: DraftTree = EMPTY_TREE
    newest_level: list[int] | None = None
    guesses: list[Ngram] = field(default_factory=list)


class Lookahead(Drafter):
    """Drafts n-grams that the target generates in parallel with decoding."""

    name = "lookahead"
    keeps_tokens = True
    needs_predictions = True
    Options = LookaheadOptions

    def __init__(self, options: LookaheadOptions) -> None:
        self.columns = options.window
        self.budget = options.budget and not options.reference_mode
        self._options = options
        self._states: dict[int, _State] = {}

    @classmethod
    def build(cls, options: LookaheadOptions) -> Lookahead:
        """Build the drafter from its options."""
        return cls(options)

    @property
    def max_nodes(self) -> int:
        """Maximum number of nodes in a draft tree with the current options."""
        return self._options.max_nodes

    def start(self, request: Request, pool: NgramPool | None = None) -> None:
        """Create the request's lookahead window from tokens in the prompt.

        Args:
            request: The new request.
            pool: N-gram pool that requests share; by default, the request gets an empty pool.
        """
        options = self._options
        fill = (
            LookaheadWindow.from_tokens if options.reference_mode else LookaheadWindow.from_phrases
        )
        rng = random.Random(0 if options.reference_mode else request.params.seed)
        window = fill(request.token_ids, options.window, options.ngram, rng)
        size = options.ngrams_per_key or max(1, options.guesses)
        own = NgramPool(size, longest_key=1 if options.reference_mode else 2)
        self._states[request.id] = _State(
            window, own if pool is None else pool, NgramPool(size), pool is None
        )

    def stop(self, request: Request) -> None:
        """Discard the window and n-grams of a request that has ended."""
        self._states.pop(request.id, None)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return each request's window and guesses as one tree."""
        return [
            self._propose(request, self._states[request.id], limit)
            for request, limit in zip(requests, max_nodes, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Add the new n-grams to the pools, and advance the windows."""
        for outcome in outcomes:
            self._learn(outcome, self._states[outcome.request.id])

    def phrases(self, request: Request, text: list[int], count: int) -> list[Ngram]:
        """Return up to `count` n-grams from the pools that may follow `text`.

        N-grams that followed the two newest tokens come first, then n-grams that followed the
        newest token alone. Within each group, newer n-grams come first. If the newest token occurs
        inside a longer n-gram, the rest of that n-gram is also a candidate. Such candidates come
        last.

        Args:
            request: Request whose pools are searched.
            text: Token ids; only the last two are used.
            count: Maximum number of n-grams.
        """
        state = self._states[request.id]
        ngrams: dict[Ngram, None] = {}
        for pool, size in ((state.pool, 2), (state.pool, 1), (state.inner_ngrams, 1)):
            for ngram in pool.newest_first(tuple(text[-size:])):
                ngrams.setdefault(ngram)
        return list(ngrams)[:count]

    def _propose(self, request: Request, state: _State, limit: int) -> DraftTree:
        options = self._options
        state.tree, state.newest_level, state.guesses = EMPTY_TREE, None, []
        if limit == 0 or (request.remaining <= 1 and not options.reference_mode):
            return EMPTY_TREE
        if options.prompt_pool:
            state.pool.add_text(request.token_ids, state.pooled_tokens, options.ngram)
            state.pooled_tokens = len(request)
        window = self._window_to_feed(request, state, limit)
        if options.guesses and not (
            options.reference_mode and window is not None and not window.full
        ):
            state.guesses = self.phrases(request, request.token_ids, options.guesses)
        builder = TreeBuilder(min(limit, options.max_nodes))
        if options.reference_mode:
            room = limit - (0 if window is None else len(window))
            del state.guesses[room // (options.ngram - 1) :]
            self._add_as_published(builder, window, state)
        else:
            if window is not None:
                state.newest_level = window.add_to_tree(builder.add)
            self._add_guesses(builder, state, request.remaining - 1)
        state.tree = builder.build()
        return state.tree

    def _window_to_feed(
        self, request: Request, state: _State, limit: int
    ) -> LookaheadWindow | None:
        """Return the window to verify; None if it is too large or would save no time."""
        options, window = self._options, state.window
        if not options.reference_mode and (
            request.remaining <= options.ngram or state.accepted > options.ngram
        ):
            return None  # new n-grams would come too late, or the pool already predicts the text
        if window is not None and len(window) > limit:
            request.counters.note(WINDOW_LEFT_OUT)
            return None
        return window

    def _add_guesses(self, builder: TreeBuilder, state: _State, depth: int) -> None:
        """Add the guesses to the tree, then extend the first few from the pool.

        Extensions are longer if more tokens were accepted in the last step.
        """
        for ngram in state.guesses:
            builder.add_path(ngram[:depth], origin=Origin.POOL)
        for ngram in state.guesses[:EXTENDED_GUESSES]:
            text = ngram
            for _ in range(1 + state.accepted // (self._options.ngram - 1)):
                more = next(state.pool.newest_first(text[-2:]), None) or next(
                    state.pool.newest_first(text[-1:]), None
                )
                if more is None:
                    break
                text += more
            builder.add_path(text[:depth], origin=Origin.POOL)

    def _add_as_published(
        self, builder: TreeBuilder, window: LookaheadWindow | None, state: _State
    ) -> None:
        """Add every token of every guess, then the window, as in the authors' code.

        The last token of each guess and all window nodes are probes: they are processed, but never
        accepted.
        """
        probes: list[tuple[int, int]] = []
        for ngram in state.guesses:
            node = -1
            for token in ngram[:-1]:
                if (node, token) in builder:
                    probes.append((token, node))
                node = builder.add(token, node, Origin.POOL)
            probes.append((ngram[-1], node))
        for token, parent in probes:
            builder.add_probe(token, parent, Origin.POOL)
        if window is not None:
            state.newest_level = window.add_to_tree(builder.add_probe)

    def _learn(self, outcome: Outcome, state: _State) -> None:
        """Update a request's window and pool from the outcome of its tree."""
        text, new = outcome.request.token_ids, outcome.new_token_ids
        root = len(text) - len(new) - 1
        context = tuple(text[max(0, root - 1) : root + 1])
        state.accepted = len(outcome.accepted)
        if state.drops_wrong_guesses and not self._options.reference_mode:
            self._judge_guesses(context, new, state)
        if outcome.tree is not state.tree:
            state.window = None  # the model verifies only chains, so it verified only one branch
        elif state.newest_level is not None and state.window is not None:
            answers = [outcome.target_argmax[node + 1] for node in state.newest_level]
            if state.window.full:
                self._pool_window(state, state.window, context, answers)
            state.window.slide(answers)

    def _judge_guesses(self, context: Ngram, new: list[int], state: _State) -> None:
        """Remove wrong guesses from the pool, and add the confirmed text to it.

        A guess is wrong if its first token differs from the target's token.

        Args:
            context: Newest tokens before the step, at most two.
            new: Tokens that the step generated.
            state: State of the request.
        """
        for ngram in state.guesses:
            if ngram[0] != new[0]:
                state.pool.remove(context, ngram)
                state.inner_ngrams.discard(context[-1:], ngram)
        length = self._options.ngram - 1
        if state.accepted and len(new) >= length:
            state.pool.add(context, tuple(new[:length]))

    def _pool_window(
        self, state: _State, window: LookaheadWindow, context: Ngram, answers: list[int]
    ) -> None:
        """Extend the pool with n-grams that the target's predictions have completed."""
        for key, ngram in window.ngrams(context, answers):
            state.pool.add(key, ngram)
            if not self._options.reference_mode:
                for start in range(len(ngram) - 1):
                    state.inner_ngrams.insert(ngram[start : start + 1], ngram[start + 1 :])
