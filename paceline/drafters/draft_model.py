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
_LONGEST = 20  # nodes where no length is given: shared by the sequences of a batch, as each makes the forward dearer,
_FEWEST = 3  # but at least so many each
_STOP_BELOW = 0.1
_BRANCH_ABOVE = 0.1
_LOOKUP_NGRAMS = (1, 3)  # shortest and longest n-gram looked up for the draft model
_LOOKUP_LENGTH = 6


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Attributes:
    length: tokens drafted per step (K). Not given: as long as the draft is sure, at most 20 (in a batch of 8: 3).
    stop_below: stop drafting a sequence once the product of the draft's top probabilities falls below; the token drawn last is
        kept. 0 = never, which is the default where a length is given; else 0.1.
    branch_above: guess the draft's second choice as well wherever its chance, by the same product, is above; it costs no draft
        forward. 1 = never, the default where a length is given; else 0.1. Not for draws.
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
class _Shadow:
    """A sequence in the draft's cache: the target's tokens, then drafted ones.

    Attributes:
        agreed: leading tokens known to be the target's; index: where n-grams of those occurred.
    """

    seq: Sequence
    agreed: int
    index: NgramIndex


@dataclass(slots=True)
class _Chain:
    """What one sequence has drafted in this step: tokens, and per token what its place was drawn from, if needed."""

    shadow: _Shadow
    limit: int
    open: bool
    chance: float = 1.0  # that all of it is right, by the draft's own top probabilities
    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)  # [vocab] each
    top_ids: list[list[int]] = field(default_factory=list)  # the two likeliest tokens
    top_probs: list[list[float]] = field(default_factory=list)


class DraftModel(Drafter):
    """Owns a `CachedLM` that holds a shadow of every sequence."""

    name = "draft_model"
    Options = DraftModelOptions

    def __init__(self, options: DraftModelOptions, draft: CachedLM) -> None:
        self.vocab_size = draft.vocab_size
        self._options = options
        self._draft = draft
        self._shadows: dict[int, _Shadow] = {}

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
            self._shadows[seq.id] = _Shadow(shadow, len(seq), NgramIndex(*_LOOKUP_NGRAMS))

    def stop(self, seq: Sequence) -> None:
        """Close the shadow."""
        shadow = self._shadows.pop(seq.id, None)
        if shadow is not None:
            self._draft.close(shadow.seq)

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft a chain for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        if self._options.length is None:
            share = max(_FEWEST, _LONGEST // len(seqs))
            max_nodes = [min(limit, share) for limit in max_nodes]
        chains: dict[int, _Chain] = {}
        for row, (seq, limit) in enumerate(zip(seqs, max_nodes, strict=True)):
            if seq.id in self._shadows:
                length = self._length(seq, limit)
                chains[row] = _Chain(self._shadows[seq.id], length, open=length > 0)
        if not any(chain.open for chain in chains.values()):
            return trees
        for row in chains:
            self._catch_up(seqs[row])
        self._draft_chains(list(chains.values()))
        for row, chain in chains.items():
            seqs[row].counters.draft_forwards = chain.shadow.seq.counters.target_forwards
            if self._draws(seqs[row]):
                trees[row] = DraftTree.chain(chain.tokens, chain.probs)
            else:
                trees[row] = self._with_branches(chain, max_nodes[row])
        return trees

    def _draft_chains(self, chains: list[_Chain]) -> None:
        """Draft until every chain has reached its limit or is no longer sure.

        Those that have stopped run along, as rows of one batch; whether one stops never depends on what it would draw next.
        """
        shadows = [chain.shadow.seq for chain in chains]
        while late := [shadow for shadow in shadows if not self._draft.reaches_end(shadow)]:
            self._draft.feed(late)  # a long prompt, in chunks
        while any(chain.open for chain in chains):
            guesses = [self._look_up(chain) for chain in chains]
            scores = sampling.target_scores(self._draft.forward(shadows, guesses), shadows, guesses)
            stream = sampling.TARGET if self._options.verification == "follow" else sampling.DRAFT
            drawn = sampling.draw(scores, shadows, guesses, stream)
            kept = [
                self._grow(chain, *_walk(guess, drawn[row], chain), scores[row])
                for row, (chain, guess) in enumerate(zip(chains, guesses, strict=True))
            ]
            self._draft.commit(kept)

    def _look_up(self, chain: _Chain) -> DraftTree:
        """A guess of what the draft model will say, so that it says more in one forward."""
        room = min(_LOOKUP_LENGTH, chain.limit - len(chain.tokens) - 1)
        if not self._options.looks_up or not chain.open or room <= 0:
            return EMPTY_TREE
        return DraftTree.chain(chain.shadow.index.continuation(chain.shadow.seq.token_ids, room))

    def _grow(self, chain: _Chain, accepted: list[int], run: list[int], scores: Tensor) -> list[int]:
        """Add a run of the draft model to its shadow and chain, up to where it is no longer sure.

        Args:
            accepted: the looked-up nodes on the run's path; scores: [1 + nodes, vocab], after the root and each of them.
        Returns:
            the nodes to commit: the run's newest token stays pending.
        """
        options = self._options
        if chain.open:
            if options.weighs or self._draws(chain.shadow.seq):
                probs = scores[[0, *(node + 1 for node in accepted)][: len(run)]].softmax(-1)
                top = probs.topk(2, dim=-1)
                for place, pair in enumerate(top.values.tolist()):
                    chain.top_probs.append(pair)
                    chain.chance *= pair[0]
                    if chain.chance < options.chain_chance:
                        run = run[: place + 1]  # that token is kept
                        chain.open = False
                        break
                chain.probs.extend(probs[: len(run)])
                chain.top_ids.extend(top.indices.tolist()[: len(run)])
            chain.tokens.extend(run)
            chain.open = chain.open and len(chain.tokens) < chain.limit
        chain.shadow.seq.token_ids.extend(run)
        return accepted[: len(run) - 1]

    def _draws(self, seq: Sequence) -> bool:
        """Whether drafts of `seq` come with their distributions."""
        return self._options.verification == "reject" and not seq.params.greedy

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

    def _catch_up(self, seq: Sequence) -> None:
        """Give the shadow the target's tokens: rewind it to the common prefix."""
        shadow = self._shadows[seq.id]
        mine, theirs, common = shadow.seq.token_ids, seq.token_ids, shadow.agreed
        while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
            common += 1
        self._draft.rewind(shadow.seq, min(common, len(theirs) - 1))
        mine[common:] = theirs[common:]
        shadow.agreed = len(theirs)
        if self._options.looks_up:
            shadow.index.update(theirs)


def _walk(guess: DraftTree, drawn: list[int], chain: _Chain) -> tuple[list[int], list[int]]:
    """Accepted nodes and emitted tokens of the draft model on a looked-up guess; at least one token, at most the chain's room."""
    room = chain.limit - len(chain.tokens)
    return follow(guess, lambda node: drawn[node + 1], lambda run: len(run) >= room)
