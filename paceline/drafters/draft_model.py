"""Speculative decoding with a small model that drafts a chain of fixed length.

Leviathan et al. 2023 and Chen et al. 2023. Greedy sequences get guesses; sampled ones get draws with their
distributions (`verification="reject"`), or, with `verification="follow"`, guesses drawn with the target's own keyed noise, which
agree with it often and keep the text of a seed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from paceline import sampling
from paceline.config import require_range
from paceline.drafter import Drafter
from paceline.errors import ConfigError, did_you_mean
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree

_VERIFICATIONS = ("reject", "follow")


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Attributes:
    length: tokens drafted per step (K).
    siblings: at every drafted place, this many of the draft's next best tokens are verified too, as guesses. They cost no
        draft forward, and save the step where the first choice is wrong and the second right.
    verification: "reject" (the papers' rule) or "follow" (same noise as the target); greedy is the same under both.
    """

    length: int = 5
    siblings: int = 0
    verification: str = "reject"

    def __post_init__(self) -> None:
        require_range("draft_model", "length", self.length, 1)
        require_range("draft_model", "siblings", self.siblings, 0)
        if self.verification not in _VERIFICATIONS:
            hint = did_you_mean(self.verification, _VERIFICATIONS)
            raise ConfigError(f"draft_model: verification is {self.verification!r}.{hint}")


@dataclass(frozen=True, slots=True)
class _Drafted:
    """One draft forward: the distributions [batch, vocab] it was drawn from, if kept, and the best tokens of each row."""

    probs: Tensor | None
    ranked: list[list[int]]


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
            self._draft.reserve(0, min(seq.max_length, self._draft.context_length) + self._options.length)
            shadow = Sequence(seq.token_ids, seq.params)
            self._draft.open(shadow)
            self._shadows[seq.id], self._agreed[seq.id] = shadow, len(seq)

    def stop(self, seq: Sequence) -> None:
        """Close the shadow."""
        shadow = self._shadows.pop(seq.id, None)
        if shadow is not None:
            del self._agreed[seq.id]
            self._draft.close(shadow)

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft up to `length` tokens for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        lengths = [self._length(seq, limit) for seq, limit in zip(seqs, max_nodes, strict=True)]
        rows = [row for row, seq in enumerate(seqs) if seq.id in self._shadows]
        longest = max((lengths[row] for row in rows), default=0)
        if longest <= 0:
            return trees
        shadows = [self._catch_up(seqs[row]) for row in rows]
        self._prefill(shadows)
        starts = [len(shadow) for shadow in shadows]
        steps = [self._draft_one(shadows) for _ in range(longest)]
        for place, (row, shadow) in enumerate(zip(rows, shadows, strict=True)):
            seqs[row].counters.draft_forwards = shadow.counters.target_forwards
            chain = shadow.token_ids[starts[place] : starts[place] + lengths[row]] if lengths[row] > 0 else []
            trees[row] = self._tree(shadow, chain, steps, place, max_nodes[row])
        return trees

    def _tree(self, shadow: Sequence, chain: list[int], steps: list[_Drafted], place: int, limit: int) -> DraftTree:
        tokens, parents = list(chain), list(range(-1, len(chain) - 1))
        for depth, token in enumerate(chain):
            room = limit - len(tokens)
            others = [other for other in steps[depth].ranked[place] if other != token]
            siblings = others[: min(self._options.siblings, room)]
            tokens += siblings
            parents += [depth - 1] * len(siblings)
        drawn = [step.probs[place] for step in steps[: len(chain)] if step.probs is not None]
        if not drawn or shadow.params.greedy:
            return DraftTree(tokens, parents)
        guesses = len(tokens) - len(chain)
        return DraftTree(tokens, parents, [*drawn, *[None] * guesses])

    def _length(self, seq: Sequence, limit: int) -> int:
        room = self._draft.context_length - len(seq)
        return min(self._options.length, limit, seq.remaining - 1, room)

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
        return shadow

    def _prefill(self, shadows: list[Sequence]) -> None:
        while late := [shadow for shadow in shadows if not self._draft.reaches_end(shadow)]:
            self._draft.feed(late)

    def _draft_one(self, shadows: list[Sequence]) -> _Drafted:
        """Append one token to every shadow."""
        trees = [EMPTY_TREE] * len(shadows)
        scores = sampling.target_scores(self._draft.feed(shadows), shadows, trees)
        follow = self._options.verification == "follow"
        tokens = sampling.draw(scores, shadows, trees, sampling.TARGET if follow else sampling.DRAFT)
        for shadow, row in zip(shadows, tokens, strict=True):
            shadow.token_ids.append(row[0])
        ranked: list[list[int]] = [[]] * len(shadows)
        if self._options.siblings:
            ranked = scores[:, 0].topk(self._options.siblings + 1, dim=-1).indices.tolist()
        keeps_probs = not follow and any(not shadow.params.greedy for shadow in shadows)
        return _Drafted(scores[:, 0].softmax(-1) if keeps_probs else None, ranked)
