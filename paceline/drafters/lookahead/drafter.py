"""Lookahead Decoding (Fu et al. 2024): the target drafts for itself.

Section 3, algorithm 1. Beside the newest token every forward also feeds a window of guesses for the
positions ahead (section 3.1, the lookahead branch: `window.py`) and up to G n-grams that began with
the newest token before (section 3.2, the verification branch; its algorithms 3 and 4 are here the
verification that all drafters share). The target's answers at the window's newest level complete W
n-grams per step, which go into a pool and are the guesses of later steps.

What is different here; `reference_mode=true` turns all of it off, and repeats the public code:

- the token after a fully matched n-gram is emitted (as the paper's algorithm 3 has it and the code
  has not);
- guesses and window share their common prefixes, and what that saves extends the first guesses by
  what the pool has behind them;
- window nodes can be accepted; the window is full and guesses are verified from the first step on;
- the two newest tokens are looked up before the one; where the pool has too few n-grams for a key,
  those that have it further inside are guessed;
- the text the target has confirmed becomes the newest entry; a guess whose first token was wrong
  leaves the pool until it is generated again;
- the window is left out while long runs are accepted anyway, and at the very end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.drafter import Drafter, Outcome
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree, TreeBuilder
from paceline.drafters.lookahead.options import LookaheadOptions
from paceline.drafters.lookahead.window import LookaheadWindow
from paceline.drafters.shared.ngram_pool import Ngram, NgramPool

__all__ = ["Lookahead", "LookaheadOptions"]

_EXTENDED_GUESSES = 2  # guesses that are continued behind their end
WINDOW_LEFT_OUT = "window_left_out"  # note: steps whose max_nodes had no room for the window


@dataclass(slots=True)
class _State:
    """What belongs to one sequence.

    Attributes:
        window: None once it is known that only chains are verified, as no answer would ever come
            back.
        pool: n-grams by the one or two tokens before.
        inner_ngrams: the window's n-grams without their first tokens, for keys the pool does not
            know.
        drops_wrong_guesses: whether wrong guesses leave the pool; not where it is shared, as its
            owner knows better.
        pooled_tokens: tokens of the text whose n-grams are in the pool.
        accepted: tokens accepted in the last step.
        tree: the last proposal.
        newest_level: in `tree`, the nodes of the window's newest level; None = the window was left
            out.
        guesses: n-grams in `tree`.
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
    """Guesses only: lossless and seed-identical at any temperature. A pool is shared only where
    one is given.
    """

    name = "lookahead"
    needs_predictions = True
    Options = LookaheadOptions

    def __init__(self, options: LookaheadOptions) -> None:
        self.columns = options.window
        self.budget = options.budget and not options.reference_mode
        self._options = options
        self._states: dict[int, _State] = {}

    @classmethod
    def build(cls, options: LookaheadOptions) -> Lookahead:
        """Build it from its options."""
        return cls(options)

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest tree."""
        return self._options.max_nodes

    def start(self, request: Request, pool: NgramPool | None = None) -> None:
        """Fill the window with the prompt's own tokens.

        Args:
            pool: one that is shared with whoever gave it; else the sequence gets an empty one of
                its own.
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
        """Drop the state."""
        self._states.pop(request.id, None)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return window and guesses of every sequence, as one tree each."""
        return [
            self._propose(request, self._states[request.id], limit)
            for request, limit in zip(requests, max_nodes, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Pool the new n-grams and move the windows ahead."""
        for outcome in outcomes:
            self._learn(outcome, self._states[outcome.request.id])

    def phrases(self, request: Request, text: list[int], count: int) -> list[Ngram]:
        """Return up to `count` n-grams that followed the newest tokens of `text`, as `request` has
        them pooled.

        Longer keys come first, newest first; inner n-grams where there are fewer.
        """
        state = self._states[request.id]
        found: dict[Ngram, None] = {}
        for pool, size in ((state.pool, 2), (state.pool, 1), (state.inner_ngrams, 1)):
            for ngram in pool.newest_first(tuple(text[-size:])):
                found.setdefault(ngram)
        return list(found)[:count]

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
        """Return the window, or None where it would not pay or does not fit."""
        options, window = self._options, state.window
        if not options.reference_mode and (
            request.remaining <= options.ngram or state.accepted > options.ngram
        ):
            return (
                None  # nobody would use its n-grams any more, or the pool knows what comes anyway
            )
        if window is not None and len(window) > limit:
            request.counters.note(WINDOW_LEFT_OUT)
            return None
        return window

    def _add_guesses(self, builder: TreeBuilder, state: _State, depth: int) -> None:
        """Add the guesses, then the continuations of the first ones; the further, the more was
        accepted last time.
        """
        for ngram in state.guesses:
            builder.add_path(ngram[:depth], origin=Origin.POOL)
        for ngram in state.guesses[:_EXTENDED_GUESSES]:
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
        """Feed every token of every guess; the last one of each and the window are never
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
        """Take in what the target said about the last tree of one sequence."""
        text, new = outcome.request.token_ids, outcome.new_token_ids
        root = len(text) - len(new) - 1
        context = tuple(text[max(0, root - 1) : root + 1])
        state.accepted = len(outcome.accepted)
        if state.drops_wrong_guesses and not self._options.reference_mode:
            self._judge_guesses(context, new, state)
        if outcome.tree is not state.tree:
            state.window = None  # a branch of it was verified: this model takes chains only
        elif state.newest_level is not None and state.window is not None:
            answers = [outcome.target_argmax[node + 1] for node in state.newest_level]
            if state.window.full:
                self._pool_window(state, state.window, context, answers)
            state.window.slide(answers)

    def _judge_guesses(self, context: Ngram, new: list[int], state: _State) -> None:
        """Forget the guesses that were wrong at once; what the target said in place of a right
        one is the newest entry.
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
        """Add the n-grams that the target's answers to the window complete."""
        for key, ngram in window.ngrams(context, answers):
            state.pool.add(key, ngram)
            if not self._options.reference_mode:
                for start in range(len(ngram) - 1):
                    state.inner_ngrams.insert(ngram[start : start + 1], ngram[start + 1 :])
