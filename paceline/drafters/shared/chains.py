"""Chains drafted by a small model: speculative decoding as Leviathan et al. 2023 and Chen et al.
2023 describe it.

The draft model continues a sequence token by token, all sequences of a batch in each of its
forwards, and the target verifies the chain at once. Greedy sequences get guesses; sampled ones get
draws with their distributions (`verification="reject"`, the papers' rejection rule), or, with
`verification="follow"`, guesses drawn with the target's own keyed noise, which agree with it often
and keep the text of a seed.

Beyond the papers: how long a chain gets is up to a rule (`length_rules.py`), and prompt lookup may
guess what the draft model will say, so that one of its forwards adds several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.drafter import Drafter, Outcome
from paceline.core.not_numbers import guess_tokens
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.drafters.shared.draft_sequence import DraftSequence
from paceline.drafters.shared.length_rules import Chain, LengthRule, NewTokens
from paceline.drafters.shared.ngram_index import NgramIndex
from paceline.model.cached_lm import CachedLM
from paceline.model.pairing import pair
from paceline.model.reduced_vocabulary import kept_alone
from paceline.sampling import sampler
from paceline.verification.verify import follow

LOOKUP_LENGTH = 8  # tokens looked up at once
_LOOKUP_NGRAMS = (1, 3)  # shortest and longest n-gram looked up for the draft model


class DraftStep(NamedTuple):
    """One chain's part of a draft forward.

    Attributes:
        looked_up: nodes of the looked-up guess that the draft model agrees with.
        run: the tokens it says, one or more.
    """

    looked_up: list[int]
    run: list[int]


@dataclass(slots=True)
class ChainSequence(DraftSequence):
    """A sequence in the draft's cache, and how to draft for it.

    Attributes:
        index: where n-grams of the target's tokens occurred.
        length: most tokens of its next draft, by the length rule.
    """

    index: NgramIndex
    length: int


class ChainDrafter(Drafter):
    """Drafts a chain for each sequence, by a `CachedLM` that holds a shadow of every one.

    Args:
        draft: the draft model.
        rule: how long drafts get.
        verification: "reject" or "follow".
        looks_up: whether prompt lookup speeds up the draft model.
        spare: cache positions of the draft model set aside for drafted tokens.
    """

    def __init__(
        self, draft: CachedLM, rule: LengthRule, verification: str, looks_up: bool, spare: int
    ) -> None:
        self._draft = draft
        self._rule = rule
        self._rejects = verification == "reject"
        self._looks_up = looks_up
        self._spare = spare
        self._shadows: dict[int, ChainSequence] = {}

    @property
    def forward_seconds(self) -> float:
        """Seconds spent in the draft model."""
        return self._draft.forward_seconds

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare the draft model for its target."""
        pair(self._draft, target, tokenizer)

    def start(self, request: Request) -> None:
        """Open the shadow. A prompt beyond the draft's context gets none, and no drafts."""
        if len(request) <= self._draft.context_length:
            self._draft.reserve(
                0, min(request.max_length, self._draft.context_length) + self._spare
            )
            shadow = Request(request.token_ids, request.params, eos_token_ids=request.eos_token_ids)
            DraftSequence.open_for(request, shadow, self._draft)
            self._shadows[request.id] = ChainSequence(
                shadow, len(request), NgramIndex(*_LOOKUP_NGRAMS), self._rule.length
            )

    def stop(self, request: Request) -> None:
        """Close the shadow."""
        shadow = self._shadows.pop(request.id, None)
        if shadow is not None:
            self._draft.close(shadow.request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(requests)
        rows = [row for row, request in enumerate(requests) if request.id in self._shadows]
        limits = [self._limit(requests[row], max_nodes[row]) for row in rows]
        if not any(limit > 0 for limit in limits):
            return trees
        for row in rows:
            self._catch_up(requests[row])
        mine = [requests[row] for row in rows]
        self._prefill([self._shadows[request.id].request for request in mine])
        for row, request, tree in zip(
            rows,
            mine,
            self._draft_trees(mine, limits, [max_nodes[row] for row in rows]),
            strict=True,
        ):
            request.counters.draft_forwards = self._shadows[
                request.id
            ].request.counters.target_forwards
            trees[row] = tree
        return trees

    def draws(self, request: Request) -> bool:
        """Whether drafts of `request` come with their distributions: sampled ones, under
        "reject".
        """
        return self._rejects and not request.params.greedy

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Tell the length rule what became of each draft."""
        for outcome in outcomes:
            shadow = self._shadows.get(outcome.request.id)
            if shadow is not None and outcome.tree.token_ids:
                shadow.length = self._rule.next_length(
                    shadow.length, len(outcome.tree), len(outcome.accepted)
                )

    def _draft_trees(
        self, requests: list[Request], limits: list[int], max_nodes: list[int]
    ) -> list[DraftTree]:
        """Draft for sequences whose shadows have caught up.

        Args:
            limits: most tokens in a row, per sequence.
            max_nodes: most nodes, per sequence.
        """
        return self._draft_chains(requests, limits)

    def _draft_chains(self, requests: list[Request], limits: list[int]) -> list[DraftTree]:
        """Draft until every chain has reached its limit or the rule ends it; a limit of 0 gives
        none.

        Sequences that have stopped run along, as rows of one batch.
        """
        shadows = [self._shadows[request.id] for request in requests]
        chains = [
            self._new_chain(request, shadow, limit)
            for request, shadow, limit in zip(requests, shadows, limits, strict=True)
        ]
        copies = [shadow.request for shadow in shadows]
        stream = sampler.DRAFT if self._rejects else sampler.TARGET
        alone = sampler.is_greedy(copies)
        kept = self._draft.kept_ids if alone else None
        while any(chain.open for chain in chains):
            guesses = [
                self._look_up(shadow, chain) for shadow, chain in zip(shadows, chains, strict=True)
            ]
            with kept_alone(alone):
                logits, hidden = self._forward(copies, guesses)
            scores = sampler.target_scores(logits, copies, guesses)
            drawn = guess_tokens(copies, sampler.draw(scores, copies, guesses, stream))
            if kept is not None:
                drawn = [kept[places].tolist() for places in drawn]
            steps = [_follow(*one) for one in zip(guesses, drawn, chains, strict=True)]
            self._draft.commit(self._extend(chains, steps, scores, hidden, kept))
        return [self._as_tree(chain) if chain.tokens else EMPTY_TREE for chain in chains]

    def _new_chain(self, request: Request, shadow: ChainSequence, limit: int) -> Chain:
        end_ids = request.eos_token_ids if self._rule.stops_at_end else frozenset()
        return Chain(shadow.request, limit, limit > 0, self.draws(request), end_ids)

    def _forward(
        self, copies: list[Request], guesses: list[DraftTree]
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits, and hidden states for a rule that reads them."""
        if self._rule.reads_hidden:
            return self._draft.forward_with_hidden(copies, guesses)
        return self._draft.forward(copies, guesses), None

    def _extend(
        self,
        chains: list[Chain],
        steps: list[DraftStep],
        scores: Tensor,
        hidden: Tensor | None,
        kept: IntArray | None,
    ) -> list[list[int]]:
        """Add to every chain and to its copy what the draft model says, up to where the rule stops.

        Args:
            scores: [batch, 1 + width, vocab, or kept], after the root and each looked-up node.
            hidden: [batch, 1 + width, hidden].
            kept: see `NewTokens`.
        Returns:
            the nodes to commit: the newest token of a run stays pending.
        """
        rows = [row for row, chain in enumerate(chains) if chain.open]
        runs = [step.run for step in steps]
        if self._rule.checks_tokens or any(chains[row].draws for row in rows):
            new = _new_tokens(rows, chains, steps, scores, hidden, kept)
            stops = self._rule.stop_after(new)
            probs = new.probs if any(chains[row].draws for row in rows) else None
            first = 0
            for row, stop_after in zip(rows, stops, strict=True):
                last = first + len(runs[row])
                runs[row] = chains[row].extend(
                    runs[row], stop_after, None if probs is None else probs[first:last]
                )
                first = last
        else:
            for row in rows:
                runs[row] = chains[row].extend(runs[row], None, None)
        for chain, run in zip(chains, runs, strict=True):
            chain.request.token_ids.extend(run)
        return [step.looked_up[: len(run) - 1] for step, run in zip(steps, runs, strict=True)]

    def _look_up(self, shadow: ChainSequence, chain: Chain) -> DraftTree:
        """Guess what the draft model will say, so that it says more in one forward."""
        return (
            DraftTree.chain(self._continuation(shadow, [], chain.room - 1))
            if chain.open
            else EMPTY_TREE
        )

    def _continuation(self, shadow: ChainSequence, path: list[int], room: int) -> list[int]:
        """Return up to `room` tokens that followed the shadow's text and `path` earlier."""
        if not self._looks_up or room <= 0:
            return []
        return shadow.index.continuation(
            shadow.request.token_ids + path, min(LOOKUP_LENGTH, room)
        ).tokens

    def _as_tree(self, chain: Chain) -> DraftTree:
        return chain_tree(chain)

    def _limit(self, request: Request, limit: int) -> int:
        """Return the most tokens to draft for `request`: by its rule, `limit`, the end of the
        answer, and the draft's context.
        """
        room = self._draft.context_length - len(request)
        return min(self._shadows[request.id].length, limit, request.remaining - 1, room)

    def _catch_up(self, request: Request) -> None:
        """Give the shadow the target's tokens, and the index."""
        shadow = self._shadows[request.id]
        shadow.sync_with_target(self._draft, request.token_ids)
        if self._looks_up:
            shadow.index.update(request.token_ids)

    def _prefill(self, shadows: list[Request]) -> None:
        """Feed long prompts in chunks, all but the last chunk."""
        while late := [shadow for shadow in shadows if not self._draft.reaches_end(shadow)]:
            self._draft.feed(late)


def chain_tree(chain: Chain, confidence: list[float] | None = None) -> DraftTree:
    """Return a chain as it is proposed: with its distributions where it was drawn."""
    origins = [Origin.MODEL] * len(chain.tokens)
    return DraftTree.chain(chain.tokens, chain.probs if chain.draws else None, confidence, origins)


def _follow(guess: DraftTree, drawn: list[int], chain: Chain) -> DraftStep:
    """Follow what the draft model drew through the looked-up guess: one token or more, at most the
    chain's room.

    Args:
        drawn: the draft model's token after the root and after each node of `guess`.
    """
    return DraftStep(
        *follow(guess, lambda node: drawn[node + 1], lambda run: len(run) >= chain.room)
    )


def _new_tokens(
    rows: list[int],
    chains: list[Chain],
    steps: list[DraftStep],
    scores: Tensor,
    hidden: Tensor | None,
    kept: IntArray | None,
) -> NewTokens:
    """Gather the new tokens of the open chains `rows`, and what they were drawn from.

    Args:
        scores, hidden, kept: of all chains, as `ChainDrafter._extend` has them.
    """
    runs = [steps[row].run for row in rows]
    where: tuple[Any, Any]
    if scores.shape[1] == 1:
        where = (rows, 0) if len(rows) < len(chains) else (slice(None), 0)
    else:
        columns = [
            column
            for row in rows
            for column in [0, *(node + 1 for node in steps[row].looked_up)][: len(steps[row].run)]
        ]
        where = ([row for row, run in zip(rows, runs, strict=True) for _ in run], columns)
    return NewTokens(
        [chains[row] for row in rows],
        runs,
        scores[where],
        None if hidden is None else hidden[where],
        kept,
    )
