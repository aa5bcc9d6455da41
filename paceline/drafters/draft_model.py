"""Speculative decoding with a small model that drafts a chain.

Leviathan et al. 2023 and Chen et al. 2023. Greedy sequences get guesses; sampled ones get draws with their
distributions (`verification="reject"`), or, with `verification="follow"`, guesses drawn with the target's own keyed noise, which
agree with it often and keep the text of a seed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from torch import Tensor

from paceline import sampling
from paceline.config import require_range
from paceline.drafter import Drafter
from paceline.drafters.ngram_index import NgramIndex
from paceline.errors import ConfigError, did_you_mean
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree
from paceline.verify import follow

_VERIFICATIONS = ("reject", "follow")
_LONGEST = 20  # tokens drafted at most where no length is given
_STOP_BELOW = 0.15
_BRANCH_ABOVE = 0.12
_LOOKUP_NGRAMS = (1, 3)  # shortest and longest n-gram looked up for the draft model
_LOOKUP_LENGTH = 6


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Attributes:
    length: tokens drafted per step (K). Not given: as long as the draft is sure, at most 20.
    stop_below: stop drafting a sequence once the product of the draft's top probabilities falls below; the token drawn last is
        kept. 0 = never, which is the default where a length is given; else 0.15.
    branch_above: guess the draft's second choice as well wherever its chance, by the same product, is above; it costs no draft
        forward. 1 = never, the default where a length is given; else 0.12. Not for draws.
    lookup: the draft model itself is sped up by prompt lookup, so that it drafts the same tokens in fewer forwards. Off where
        a length is given, else on.
    verification: "reject" (the papers' rule) or "follow" (same noise as the target); greedy is the same under both.
    """

    length: int | None = None
    stop_below: float | None = None
    branch_above: float | None = None
    lookup: bool | None = None
    verification: str = "reject"

    def __post_init__(self) -> None:
        if self.length is not None:
            require_range("draft_model", "length", self.length, 1)
        for name in ("stop_below", "branch_above"):
            if getattr(self, name) is not None:
                require_range("draft_model", name, getattr(self, name), 0, 1)
        if self.verification not in _VERIFICATIONS:
            hint = did_you_mean(self.verification, _VERIFICATIONS)
            raise ConfigError(f"draft_model: verification is {self.verification!r}.{hint}")

    @property
    def longest(self) -> int:
        """Most tokens drafted per step."""
        return _LONGEST if self.length is None else self.length

    @property
    def chain_chance(self) -> float:
        """The chance below which a chain ends."""
        if self.stop_below is not None:
            return self.stop_below
        return _STOP_BELOW if self.length is None else 0.0

    @property
    def branch_chance(self) -> float:
        """The chance a second choice must have."""
        if self.branch_above is not None:
            return self.branch_above
        return _BRANCH_ABOVE if self.length is None else 1.0

    @property
    def weighs(self) -> bool:
        """Whether the draft's probabilities decide anything."""
        return self.chain_chance > 0 or self.branch_chance < 1

    @property
    def looks_up(self) -> bool:
        """Whether drafting is sped up by prompt lookup."""
        return self.length is None if self.lookup is None else self.lookup


@dataclass(slots=True)
class _Chain:
    """What one sequence has drafted in this step: tokens, and per token what its place was drawn from, if needed."""

    limit: int
    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)  # [vocab] each
    top_ids: list[list[int]] = field(default_factory=list)  # the two likeliest tokens
    top_probs: list[list[float]] = field(default_factory=list)
    chance: float = 1.0  # that all of it is right, by the draft's own top probabilities
    open: bool = True


class DraftModel(Drafter):
    """Owns a `CachedLM` with a shadow of every sequence: the target's tokens, then the drafted ones."""

    name = "draft_model"
    Options = DraftModelOptions

    def __init__(self, options: DraftModelOptions, draft: CachedLM) -> None:
        self.vocab_size = draft.vocab_size
        self._options = options
        self._draft = draft
        self._shadows: dict[int, Sequence] = {}
        self._agreed: dict[int, int] = {}  # leading tokens of a shadow that are the target's
        self._indices: dict[int, NgramIndex] = {}  # by shadow

    @classmethod
    def build(cls, options: DraftModelOptions, draft: CachedLM) -> DraftModel:
        """From its options and the draft model."""
        return cls(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Seconds spent in the draft model."""
        return self._draft.forward_seconds

    def start(self, seq: Sequence) -> None:
        """Open the shadow. A prompt beyond the draft's context gets none, and no drafts."""
        if len(seq) <= self._draft.context_length:
            self._draft.reserve(0, min(seq.max_length, self._draft.context_length) + self._options.longest)
            shadow = Sequence(seq.token_ids, seq.params)
            self._draft.open(shadow)
            self._shadows[seq.id], self._agreed[seq.id] = shadow, len(seq)
            self._indices[shadow.id] = NgramIndex(*_LOOKUP_NGRAMS)

    def stop(self, seq: Sequence) -> None:
        """Close the shadow."""
        shadow = self._shadows.pop(seq.id, None)
        if shadow is not None:
            del self._agreed[seq.id], self._indices[shadow.id]
            self._draft.close(shadow)

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft a chain for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        rows = [row for row, seq in enumerate(seqs) if seq.id in self._shadows]
        chains = [_Chain(self._length(seqs[row], max_nodes[row])) for row in rows]
        if max((chain.limit for chain in chains), default=0) <= 0:
            return trees
        shadows = [self._catch_up(seqs[row]) for row in rows]
        self._prefill(shadows)
        for chain in chains:
            chain.open = chain.limit > 0
        while any(chain.open for chain in chains):
            self._extend(shadows, chains)
        for row, shadow, chain in zip(rows, shadows, chains, strict=True):
            seqs[row].counters.draft_forwards = shadow.counters.target_forwards
            drawn = self._options.verification == "reject" and not shadow.params.greedy
            trees[row] = DraftTree.chain(chain.tokens, chain.probs) if drawn else self._with_branches(chain, max_nodes[row])
        return trees

    def _extend(self, shadows: list[Sequence], chains: list[_Chain]) -> None:
        """One draft forward: every shadow grows by its draft's next token, and by those that prompt lookup guessed right.

        Rows that have stopped run along, as slots of one batch; whether they stop never depends on what they would draw next.
        """
        guesses = [self._look_up(shadow, chain) for shadow, chain in zip(shadows, chains, strict=True)]
        scores = sampling.target_scores(self._draft.forward(shadows, guesses), shadows, guesses)
        stream = sampling.TARGET if self._options.verification == "follow" else sampling.DRAFT
        drawn = sampling.draw(scores, shadows, guesses, stream)
        kept = []
        for row, (shadow, chain, guess) in enumerate(zip(shadows, chains, guesses, strict=True)):
            room = max(1, chain.limit - len(chain.tokens))
            accepted, run = follow(guess, lambda node, row=row: drawn[row][node + 1], lambda run, room=room: len(run) >= room)  # type: ignore[misc]
            if chain.open:
                run = self._grow(chain, run, scores[row, [node + 1 for node in [-1, *accepted]][: len(run)]], shadow)
            shadow.token_ids.extend(run)
            kept.append(accepted[: len(run) - 1])  # the newest token stays pending
        self._draft.commit(kept)

    def _look_up(self, shadow: Sequence, chain: _Chain) -> DraftTree:
        room = min(_LOOKUP_LENGTH, chain.limit - len(chain.tokens) - 1)
        if not self._options.looks_up or not chain.open or room <= 0:
            return EMPTY_TREE
        return DraftTree.chain(self._indices[shadow.id].continuation(shadow.token_ids, room))

    def _grow(self, chain: _Chain, run: list[int], scores: Tensor, shadow: Sequence) -> list[int]:
        """Add a run to a chain, up to where the draft is no longer sure. scores: [run, vocab], before each of its tokens."""
        options = self._options
        drawn = options.verification == "reject" and not shadow.params.greedy
        if drawn or options.weighs:
            probs = scores.softmax(-1)
            top = probs.topk(2, dim=-1)
            values, ids = top.values.tolist(), top.indices.tolist()
            for place in range(len(run)):
                chain.chance *= values[place][0]
                if chain.chance < options.chain_chance:
                    run = run[: place + 1]  # that token is kept
                    chain.open = False
                    break
            chain.probs.extend(probs[: len(run)])
            chain.top_ids.extend(ids[: len(run)])
            chain.top_probs.extend(values[: len(run)])
        chain.tokens.extend(run)
        chain.open = chain.open and len(chain.tokens) < chain.limit
        return run

    def _with_branches(self, chain: _Chain, limit: int) -> DraftTree:
        """The chain, and beside each of its nodes the second choice where that may well be the right one."""
        tokens, parents, chance = list(chain.tokens), list(range(-1, len(chain.tokens) - 1)), 1.0
        for depth, (ids, (first, second)) in enumerate(zip(chain.top_ids, chain.top_probs, strict=True)):
            if len(tokens) >= limit:
                break
            if chance * second > self._options.branch_chance:
                tokens.append(ids[1] if ids[0] == chain.tokens[depth] else ids[0])
                parents.append(depth - 1)
            chance *= first
        return DraftTree(tokens, parents)

    def _length(self, seq: Sequence, limit: int) -> int:
        room = self._draft.context_length - len(seq)
        return min(self._options.longest, limit, seq.remaining - 1, room)

    def _catch_up(self, seq: Sequence) -> Sequence:
        """Give the shadow the target's tokens: rewind it to the common prefix."""
        shadow = self._shadows[seq.id]
        mine, theirs = shadow.token_ids, seq.token_ids
        common = self._agreed[seq.id]
        while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
            common += 1
        self._draft.rewind(shadow, min(common, len(theirs) - 1))
        mine[common:] = theirs[common:]
        self._agreed[seq.id] = len(theirs)
        if self._options.looks_up:
            self._indices[shadow.id].update(theirs)
        return shadow

    def _prefill(self, shadows: list[Sequence]) -> None:
        while late := [shadow for shadow in shadows if not self._draft.reaches_end(shadow)]:
            self._draft.feed(late)
