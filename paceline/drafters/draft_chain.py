"""Chains drafted by a small model, all sequences of a batch together: what the drafters that own one have in common.

Leviathan et al. 2023 and Chen et al. 2023. Greedy sequences get guesses; sampled ones get draws with their distributions
(`verification="reject"`), or, with `verification="follow"`, guesses drawn with the target's own keyed noise, which agree with it
often and keep the text of a seed. How long a chain gets is up to a rule (`length_rules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paceline import sampling
from paceline.drafter import Drafter, Outcome
from paceline.drafters.length_rules import Chain, Drawn, LengthRule
from paceline.drafters.ngram_index import NgramIndex
from paceline.drafters.shadow import Shadow
from paceline.errors import ConfigError, did_you_mean
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree
from paceline.verify import follow

LOOKUP_LENGTH = 8  # tokens looked up at once
_LOOKUP_NGRAMS = (1, 3)  # shortest and longest n-gram looked up for the draft model
_VERIFICATIONS = ("reject", "follow")

Walk = tuple[list[int], list[int]]  # the looked-up nodes the draft model agrees with, and the tokens it says


def require_verification(owner: str, verification: str) -> None:
    """Refuse what is no rule of verification.

    Raises:
        ConfigError: the close match is named.
    """
    if verification not in _VERIFICATIONS:
        raise ConfigError(f"{owner}: verification is {verification!r}.{did_you_mean(verification, _VERIFICATIONS)}")


@dataclass(slots=True)
class ChainShadow(Shadow):
    """What a sequence owns here.

    Attributes:
        index: where n-grams of the target's tokens occurred.
        length: most tokens of its next draft, by the length rule.
    """

    index: NgramIndex
    length: int


class ChainDrafter(Drafter):
    """Owns a `CachedLM` that holds a shadow of every sequence, and drafts a chain for each.

    Args:
        rule: how long drafts get.
        verification: "reject" or "follow".
        looks_up: the draft model is sped up by prompt lookup.
        spare: cache positions of the draft model set aside for drafted tokens.
    """

    def __init__(self, draft: CachedLM, rule: LengthRule, verification: str, looks_up: bool, spare: int) -> None:
        self.vocab_size = draft.vocab_size
        self._draft = draft
        self._rule = rule
        self._rejects = verification == "reject"
        self._looks_up = looks_up
        self._spare = spare
        self._shadows: dict[int, ChainShadow] = {}

    @property
    def forward_seconds(self) -> float:
        """Seconds spent in the draft model."""
        return self._draft.forward_seconds

    def start(self, seq: Sequence) -> None:
        """Open the shadow. A prompt beyond the draft's context gets none, and no drafts."""
        if len(seq) <= self._draft.context_length:
            self._draft.reserve(0, min(seq.max_length, self._draft.context_length) + self._spare)
            shadow = Sequence(seq.token_ids, seq.params)
            self._draft.open(shadow)
            self._shadows[seq.id] = ChainShadow(shadow, len(seq), NgramIndex(*_LOOKUP_NGRAMS), self._rule.length)

    def stop(self, seq: Sequence) -> None:
        """Close the shadow."""
        shadow = self._shadows.pop(seq.id, None)
        if shadow is not None:
            self._draft.close(shadow.seq)

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        rows = [row for row, seq in enumerate(seqs) if seq.id in self._shadows]
        limits = [self._limit(seqs[row], max_nodes[row]) for row in rows]
        if not any(limit > 0 for limit in limits):
            return trees
        for row in rows:
            self._catch_up(seqs[row])
        mine = [seqs[row] for row in rows]
        self._prefill([self._shadows[seq.id].seq for seq in mine])
        for row, seq, tree in zip(rows, mine, self._draft_trees(mine, limits, [max_nodes[row] for row in rows]), strict=True):
            seq.counters.draft_forwards = self._shadows[seq.id].seq.counters.target_forwards
            trees[row] = tree
        return trees

    def observe(self, outcomes: Seq[Outcome]) -> None:
        """Tell the length rule what became of each draft."""
        for outcome in outcomes:
            shadow = self._shadows.get(outcome.seq.id)
            if shadow is not None and outcome.tree.token_ids:
                shadow.length = self._rule.next_length(shadow.length, len(outcome.tree), len(outcome.accepted))

    def _draft_trees(self, seqs: list[Sequence], limits: list[int], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for sequences whose shadows have caught up.

        Args:
            limits: most tokens in a row, per sequence; max_nodes: most nodes.
        """
        return self._draft_chains(seqs, limits)

    def _draft_chains(self, seqs: list[Sequence], limits: list[int]) -> list[DraftTree]:
        """Draft until every chain has reached its limit or the rule ends it; a limit of 0 gives none.

        Those that have stopped run along, as rows of one batch.
        """
        shadows = [self._shadows[seq.id] for seq in seqs]
        chains = [
            Chain(shadow.seq, limit, limit > 0, self._draws(seq), seq.eos_token_ids if self._rule.stops_at_end else frozenset())
            for seq, shadow, limit in zip(seqs, shadows, limits, strict=True)
        ]
        copies = [shadow.seq for shadow in shadows]
        stream = sampling.DRAFT if self._rejects else sampling.TARGET
        while any(chain.open for chain in chains):
            guesses = [self._look_up(shadow, chain) for shadow, chain in zip(shadows, chains, strict=True)]
            logits, hidden = self._forward(copies, guesses)
            scores = sampling.target_scores(logits, copies, guesses)
            drawn = sampling.draw(scores, copies, guesses, stream)
            walks = [_walk(guess, drawn[row], chain) for row, (chain, guess) in enumerate(zip(chains, guesses, strict=True))]
            self._draft.commit(self._extend(chains, walks, scores, hidden))
        return [self._as_tree(chain) if chain.tokens else EMPTY_TREE for chain in chains]

    def _forward(self, copies: list[Sequence], guesses: list[DraftTree]) -> tuple[Tensor, Tensor | None]:
        """Logits, and hidden states for a rule that reads them."""
        if self._rule.reads_hidden:
            return self._draft.forward_with_hidden(copies, guesses)
        return self._draft.forward(copies, guesses), None

    def _extend(self, chains: list[Chain], walks: list[Walk], scores: Tensor, hidden: Tensor | None) -> list[list[int]]:
        """Add to every chain and shadow what the draft model says, up to where the rule stops.

        Args:
            scores: [batch, 1 + width, vocab], after the root and each looked-up node; hidden: [batch, 1 + width, hidden].
        Returns:
            the nodes to commit: the newest token of a run stays pending.
        """
        rows = [row for row, chain in enumerate(chains) if chain.open]
        runs = [run for _, run in walks]
        if self._rule.looks or any(chains[row].draws for row in rows):
            drawn = _select(rows, chains, walks, scores, hidden)
            first = 0
            for row, stop in zip(rows, self._rule.stops(drawn), strict=True):
                last = first + len(runs[row])
                runs[row] = _add(chains[row], runs[row], stop, drawn.probs[first:last])
                first = last
        else:
            for row in rows:
                runs[row] = _add(chains[row], runs[row], None, None)
        for chain, run in zip(chains, runs, strict=True):
            chain.seq.token_ids.extend(run)
        return [accepted[: len(run) - 1] for (accepted, _), run in zip(walks, runs, strict=True)]

    def _look_up(self, shadow: ChainShadow, chain: Chain) -> DraftTree:
        """A guess of what the draft model will say, so that it says more in one forward."""
        room = chain.limit - len(chain.tokens) - 1
        return DraftTree.chain(self._continuation(shadow, [], room)) if chain.open else EMPTY_TREE

    def _continuation(self, shadow: ChainShadow, path: list[int], room: int) -> list[int]:
        """Up to `room` tokens that followed the shadow's text and `path` earlier."""
        if not self._looks_up or room <= 0:
            return []
        return shadow.index.continuation(shadow.seq.token_ids + path, min(LOOKUP_LENGTH, room))

    def _draws(self, seq: Sequence) -> bool:
        """Whether drafts of `seq` come with their distributions."""
        return self._rejects and not seq.params.greedy

    def _as_tree(self, chain: Chain) -> DraftTree:
        return DraftTree.chain(chain.tokens, chain.probs if chain.draws else None)

    def _limit(self, seq: Sequence, limit: int) -> int:
        room = self._draft.context_length - len(seq)
        return min(self._shadows[seq.id].length, limit, seq.remaining - 1, room)

    def _catch_up(self, seq: Sequence) -> None:
        """Give the shadow the target's tokens, and the index."""
        shadow = self._shadows[seq.id]
        shadow.catch_up(self._draft, seq.token_ids)
        if self._looks_up:
            shadow.index.update(seq.token_ids)

    def _prefill(self, shadows: list[Sequence]) -> None:
        """Feed long prompts in chunks, but for the last."""
        while late := [shadow for shadow in shadows if not self._draft.reaches_end(shadow)]:
            self._draft.feed(late)


def _walk(guess: DraftTree, drawn: list[int], chain: Chain) -> Walk:
    """Accepted nodes and emitted tokens of the draft model on a looked-up guess; at least one token, at most the chain's room."""
    room = chain.limit - len(chain.tokens)
    return follow(guess, lambda node: drawn[node + 1], lambda run: len(run) >= room)


def _select(rows: list[int], chains: list[Chain], walks: list[Walk], scores: Tensor, hidden: Tensor | None) -> Drawn:
    """What was drawn for the chains `rows`, and from what; arguments as `ChainDrafter._extend` has them."""
    runs = [walks[row][1] for row in rows]
    where: tuple[Any, Any]
    if scores.shape[1] == 1:
        where = (rows, 0) if len(rows) < len(chains) else (slice(None), 0)
    else:
        columns = [column for row in rows for column in [0, *(node + 1 for node in walks[row][0])][: len(walks[row][1])]]
        where = ([row for row, run in zip(rows, runs, strict=True) for _ in run], columns)
    return Drawn([chains[row] for row in rows], runs, scores[where].softmax(-1), None if hidden is None else hidden[where])


def _add(chain: Chain, run: list[int], stop: int | None, probs: Tensor | None) -> list[int]:
    """Add `run` to an open chain, which ends at `stop`, at a token that ends it, or at its limit.

    Args:
        probs: [len(run), vocab], what they were drawn from; draws need it.
    Returns:
        the tokens the draft model's copy goes on with: those added, and one at least.
    """
    shown = len(run) if stop is None else stop
    chain.open = stop is None
    for place, token in enumerate(run[:shown] if chain.ends else ()):
        if token in chain.ends:
            chain.open, shown = False, place + 1
            break
    chain.tokens.extend(run[:shown])
    if chain.draws and probs is not None:
        chain.probs.extend(probs[:shown])
    chain.open = chain.open and len(chain.tokens) < chain.limit
    return run[: max(1, shown)]
