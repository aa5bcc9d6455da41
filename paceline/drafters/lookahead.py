"""Lookahead Decoding (Fu et al. 2024): the target drafts for itself.

Beside the newest token every forward also feeds a window of guesses for the positions ahead (the lookahead branch, see
`lookahead_window`) and up to G n-grams that began with the newest token before (the verification branch). The target's
answers at the window's newest level complete W n-grams per step, which go into a pool and are the guesses of later steps.

Beyond the paper's Algorithm 2 and its public code, all of it off with `compat=true`: the token after a fully matched n-gram
is emitted (as the paper's Algorithm 3 has it and the code has not); guesses and window share their common prefixes, and what
that saves extends the first guesses by what the pool has behind them; window nodes can be accepted; the window is full and
guesses are verified from the first step on; the two newest tokens are looked up before the one; the text the target has
confirmed becomes the newest entry; a guess whose first token was wrong leaves the pool until it is generated again; where
the pool has too few n-grams for a key, those that have it further inside are guessed; the window is left out while long runs
are accepted anyway, and at the very end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from paceline.config import require_range
from paceline.drafter import Drafter, Outcome
from paceline.drafters.lookahead_window import Window
from paceline.drafters.ngram_pool import Ngram, NgramPool
from paceline.errors import ConfigError
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree, TreeBuilder

_EXTENDED = 2  # guesses that are continued behind their end
WINDOW_LEFT_OUT = "window_left_out"  # note: steps whose max_nodes had no room for the window


@dataclass(frozen=True, slots=True)
class LookaheadOptions:
    """Attributes:
    window: W, columns of the window.
    ngram: N, tokens of an n-gram, the key included; a fully accepted one gives N tokens in one forward.
    guesses: G, most n-grams verified per step; 0 = the window's own nodes only.
    pool: n-grams kept per key; none = as many as guesses.
    prompt_pool: n-grams of the prompt and of the answer go into the pool too ("prompt as reference").
    compat: exactly the public code's steps, for comparison.
    """

    window: int = 3
    ngram: int = 5
    guesses: int = 3
    pool: int | None = None
    prompt_pool: bool = True
    compat: bool = False

    def __post_init__(self) -> None:
        require_range("lookahead", "window", self.window, 1)
        require_range("lookahead", "ngram", self.ngram, 2)
        require_range("lookahead", "guesses", self.guesses, 0)
        if self.pool is not None:
            require_range("lookahead", "pool", self.pool, 1)
        if self.compat and self.ngram < 3:
            raise ConfigError(f"lookahead: ngram is {self.ngram} with compat=true; the public code allows 3 or more.")

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree: (N - 1) (W + G) tokens, one of which is the root."""
        return (self.ngram - 1) * (self.window + self.guesses) - 1


@dataclass(slots=True)
class _State:
    """What one sequence owns."""

    window: Window | None  # None once it is known that only chains are verified: no answer would ever come back
    pool: NgramPool
    tails: NgramPool  # the window's n-grams without their first tokens, for keys the pool does not know
    judges: bool  # whether wrong guesses leave the pool; not where it is shared, for its owner knows better what is right
    pooled: int = 0  # tokens of the text whose n-grams are in the pool
    accepted: int = 0  # tokens accepted in the last step
    tree: DraftTree = EMPTY_TREE  # the last proposal,
    newest: list[int] | None = None  # in it the nodes of the window's newest level; None = the window was left out
    guesses: list[Ngram] = field(default_factory=list)


class Lookahead(Drafter):
    """Guesses only: lossless and seed-identical at any temperature. A pool is shared only where one is given."""

    name = "lookahead"
    Options = LookaheadOptions

    def __init__(self, options: LookaheadOptions) -> None:
        self.columns = options.window
        self._options = options
        self._states: dict[int, _State] = {}

    @classmethod
    def build(cls, options: LookaheadOptions) -> Lookahead:
        """From its options."""
        return cls(options)

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree."""
        return self._options.most_nodes

    def start(self, seq: Sequence, pool: NgramPool | None = None) -> None:
        """A window of the prompt's own tokens, and `pool`, shared with whoever gave it; an empty one of its own if none came."""
        options = self._options
        make = Window.of_tokens if options.compat else Window.of_phrases
        rng = random.Random(0 if options.compat else seq.params.seed)
        window = make(seq.token_ids, options.window, options.ngram, rng)
        size = options.pool or max(1, options.guesses)
        own = NgramPool(size, longest_key=1 if options.compat else 2)
        self._states[seq.id] = _State(window, own if pool is None else pool, NgramPool(size), pool is None)

    def stop(self, seq: Sequence) -> None:
        """Drop the state."""
        self._states.pop(seq.id, None)

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Window and guesses of every sequence, as one tree each."""
        return [self._propose(seq, self._states[seq.id], limit) for seq, limit in zip(seqs, max_nodes, strict=True)]

    def _propose(self, seq: Sequence, state: _State, limit: int) -> DraftTree:
        options = self._options
        state.tree, state.newest, state.guesses = EMPTY_TREE, None, []
        if limit == 0 or (seq.remaining <= 1 and not options.compat):
            return EMPTY_TREE
        if options.prompt_pool:
            state.pool.add_text(seq.token_ids, state.pooled, options.ngram)
            state.pooled = len(seq)
        window = state.window
        if not options.compat and (seq.remaining <= options.ngram or state.accepted > options.ngram):
            window = None  # nobody would use its n-grams any more, or the pool knows what comes anyway
        if window is not None and len(window) > limit:
            seq.counters.note(WINDOW_LEFT_OUT)
            window = None
        if options.guesses and not (options.compat and window is not None and not window.full):
            state.guesses = self.phrases(seq, seq.token_ids, options.guesses)
        builder = TreeBuilder(min(limit, options.most_nodes))
        if options.compat:
            room = limit - (0 if window is None else len(window))
            del state.guesses[room // (options.ngram - 1) :]
            self._plant_as_published(builder, window, state)
        else:
            if window is not None:
                state.newest = window.plant(builder.add)
            self._plant_guesses(builder, state, seq.remaining - 1)
        state.tree = builder.build()
        return state.tree

    def phrases(self, seq: Sequence, text: list[int], count: int) -> list[Ngram]:
        """Up to `count` n-grams that followed the newest tokens of `text`, as `seq` has them pooled.

        Longer keys first, newest first; tails where there are fewer.
        """
        state = self._states[seq.id]
        found: dict[Ngram, None] = {}
        for pool, size in ((state.pool, 2), (state.pool, 1), (state.tails, 1)):
            for ngram in pool.newest_first(tuple(text[-size:])):
                found.setdefault(ngram)
        return list(found)[:count]

    def _plant_guesses(self, builder: TreeBuilder, state: _State, depth: int) -> None:
        """Add the guesses, then the continuations of the first ones; the further, the more was accepted last time."""
        for ngram in state.guesses:
            builder.add_path(ngram[:depth])
        for ngram in state.guesses[:_EXTENDED]:
            text = ngram
            for _ in range(1 + state.accepted // (self._options.ngram - 1)):
                more = next(state.pool.newest_first(text[-2:]), None) or next(state.pool.newest_first(text[-1:]), None)
                if more is None:
                    break
                text += more
            builder.add_path(text[:depth])

    def _plant_as_published(self, builder: TreeBuilder, window: Window | None, state: _State) -> None:
        """Every token of every guess is fed, the last one of each and the window are never accepted."""
        probes: list[tuple[int, int]] = []
        for ngram in state.guesses:
            node = -1
            for token in ngram[:-1]:
                if (node, token) in builder:
                    probes.append((token, node))
                node = builder.add(token, node)
            probes.append((ngram[-1], node))
        for token, parent in probes:
            builder.add_probe(token, parent)
        if window is not None:
            state.newest = window.plant(builder.add_probe)

    def observe(self, outcomes: Seq[Outcome]) -> None:
        """Pool the new n-grams and move the windows ahead."""
        for outcome in outcomes:
            self._learn(outcome, self._states[outcome.seq.id])

    def _learn(self, outcome: Outcome, state: _State) -> None:
        text, new = outcome.seq.token_ids, outcome.new_token_ids
        root = len(text) - len(new) - 1
        context = tuple(text[max(0, root - 1) : root + 1])
        state.accepted = len(outcome.accepted)
        if state.judges and not self._options.compat:
            self._judge_guesses(context, new, state)
        if outcome.tree is not state.tree:
            state.window = None  # a branch of it was verified: this model takes chains only
        elif state.newest is not None and state.window is not None:
            answers = [outcome.target_argmax[node + 1] for node in state.newest]
            if state.window.full:
                self._pool_window(state.window.ngrams(context, answers), state)
            state.window.move(answers)

    def _judge_guesses(self, context: Ngram, new: list[int], state: _State) -> None:
        """Forget the guesses that were wrong at once; what the target said in place of a right one is the newest entry."""
        for ngram in state.guesses:
            if ngram[0] != new[0]:
                state.pool.remove(context, ngram)
                state.tails.discard(context[-1:], ngram)
        length = self._options.ngram - 1
        if state.accepted and len(new) >= length:
            state.pool.add(context, tuple(new[:length]))

    def _pool_window(self, ngrams: Iterable[tuple[Ngram, Ngram]], state: _State) -> None:
        for key, ngram in ngrams:
            state.pool.add(key, ngram)
            if not self._options.compat:
                for start in range(len(ngram) - 1):
                    state.tails.insert(ngram[start : start + 1], ngram[start + 1 :])
