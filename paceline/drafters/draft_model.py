"""Speculative decoding with a small model that drafts a chain.

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
_LONGEST = 16  # tokens drafted at most where no length is given
_STOP_BELOW = 0.1
_BRANCH_ABOVE = 0.08


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Attributes:
    length: tokens drafted per step (K). Not given: as long as the draft is sure, at most 16.
    stop_below: stop drafting a sequence once the product of the draft's top probabilities falls below; the token drawn last is
        kept. 0 = never, which is the default where a length is given; else 0.1.
    branch_above: guess the draft's second choice as well wherever its chance, by the same product, is above; it costs no draft
        forward. 1 = never, the default where a length is given; else 0.08. Not for draws.
    verification: "reject" (the papers' rule) or "follow" (same noise as the target); greedy is the same under both.
    """

    length: int | None = None
    stop_below: float | None = None
    branch_above: float | None = None
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


@dataclass(frozen=True, slots=True)
class _Drafted:
    """One draft forward: the distributions [batch, vocab] drawn from, and each row's two likeliest tokens; if needed."""

    probs: Tensor | None = None
    top_ids: list[list[int]] | None = None
    top_probs: list[list[float]] | None = None


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
            self._draft.reserve(0, min(seq.max_length, self._draft.context_length) + self._options.longest)
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
        """Draft a chain for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        rows = [row for row, seq in enumerate(seqs) if seq.id in self._shadows]
        limits = [self._length(seqs[row], max_nodes[row]) for row in rows]
        if max(limits, default=0) <= 0:
            return trees
        shadows = [self._catch_up(seqs[row]) for row in rows]
        self._prefill(shadows)
        starts = [len(shadow) for shadow in shadows]
        counts, steps = self._draft_chains(shadows, limits)
        for place, (row, shadow) in enumerate(zip(rows, shadows, strict=True)):
            seqs[row].counters.draft_forwards = shadow.counters.target_forwards
            chain = shadow.token_ids[starts[place] : starts[place] + counts[place]]
            probs = [step.probs[place] for step in steps[: counts[place]] if step.probs is not None]
            if probs and not shadow.params.greedy:
                trees[row] = DraftTree.chain(chain, list(probs))
            else:
                trees[row] = self._with_branches(chain, steps, place, max_nodes[row])
        return trees

    def _with_branches(self, chain: list[int], steps: list[_Drafted], place: int, limit: int) -> DraftTree:
        """The chain, and beside each of its nodes the second choice where that may well be the right one."""
        tokens, parents, chance = list(chain), list(range(-1, len(chain) - 1)), 1.0
        for depth, (token, step) in enumerate(zip(chain, steps, strict=False)):
            if step.top_probs is None or step.top_ids is None or len(tokens) >= limit:
                break
            first, second = step.top_probs[place]
            if chance * second > self._options.branch_chance:
                ids = step.top_ids[place]
                tokens.append(ids[1] if ids[0] == token else ids[0])
                parents.append(depth - 1)
            chance *= first
        return DraftTree(tokens, parents)

    def _draft_chains(self, shadows: list[Sequence], limits: list[int]) -> tuple[list[int], list[_Drafted]]:
        """Draft until every row has reached its limit or is no longer sure; returns how many tokens each row has drawn.

        Rows that have stopped run along, as slots of one batch; whether they stop never depends on what they would draw next.
        """
        counts, chances, steps = [0] * len(shadows), [1.0] * len(shadows), []
        drafting = [place for place, limit in enumerate(limits) if limit > 0]
        while drafting:
            steps.append(self._draft_one(shadows))
            for place in drafting:
                counts[place] += 1
                if steps[-1].top_probs is not None:
                    chances[place] *= steps[-1].top_probs[place][0]
            drafting = [p for p in drafting if counts[p] < limits[p] and chances[p] >= self._options.chain_chance]
        return counts, steps

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
        keeps_probs = not follow and any(not shadow.params.greedy for shadow in shadows)
        chances = self._options.chain_chance > 0 or self._options.branch_chance < 1
        if not keeps_probs and not chances:
            return _Drafted()
        probs = scores[:, 0].softmax(-1)
        if not chances:
            return _Drafted(probs)
        top = probs.topk(2, dim=-1)
        return _Drafted(probs if keeps_probs else None, top.indices.tolist(), top.values.tolist())
