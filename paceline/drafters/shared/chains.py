"""Draft chains with a small model (Leviathan et al. 2023, Chen et al. 2023).

Each forward pass of the draft model extends the chains of all requests in a batch. The target then
verifies all chains in one forward pass. For greedy requests, the drafts are deterministic. For
sampled requests, the drafts depend on `verification`:

- "reject": The draft model samples the drafts, and the engine verifies them by rejection sampling.
- "traverse": The draft model samples the drafts in the same way, but the engine verifies a chain
  from the last token to the first.
- "follow": The drafts are deterministic: the draft model uses the same random numbers as the
  target. These drafts often agree with the target. For a given seed, the text equals that of plain
  decoding.

Two features are not in the papers. First, a rule determines the length of a chain
(`length_rules.py`). Second, prompt lookup may predict the draft model's tokens, so that one draft
forward pass adds several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.drafter import Drafter, Outcome
from paceline.core.not_numbers import guess_tokens
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.shared.chain import Chain
from paceline.drafters.shared.draft_sequence import DraftSequence
from paceline.drafters.shared.draft_step import DraftStep, OpenRows, chain_tree, follow_text
from paceline.drafters.shared.drawn_tokens import NewTokens
from paceline.drafters.shared.length_rules import LengthRule
from paceline.drafters.shared.ngram_index import NgramIndex
from paceline.drafters.shared.settings import ChainSettings
from paceline.model.cached_lm import CachedLM
from paceline.model.pairing import pair
from paceline.sampling import sampler

_SETTINGS = ChainSettings()
LOOKUP_LENGTH = _SETTINGS.lookup_tokens


@dataclass(slots=True)
class ChainSequence(DraftSequence):
    """The draft model's copy of a request, with an n-gram index for prompt lookup.

    Attributes:
        index: N-gram index of the target's tokens.
        length: Maximum number of tokens in the next draft, set by the length rule.
    """

    index: NgramIndex
    length: int


class ChainDrafter(Drafter):
    """Drafts one chain per request, using the draft model's copy of the request.

    Args:
        draft: Draft model to use.
        rule: Rule that determines the length of each chain.
        verification: Method for drawing and verifying the drafts of sampled requests: "reject",
            "traverse" or "follow"; the module docstring describes these methods.
        looks_up: Whether to speed up the draft model with prompt lookup.
        spare: Number of cache positions reserved for draft tokens.
    Attributes:
        other_tokenizer: Whether the draft model and the target may have different tokenizers.
    """

    other_tokenizer = False

    def __init__(
        self, draft: CachedLM, rule: LengthRule, verification: str, looks_up: bool, spare: int
    ) -> None:
        self._draft = draft
        self._rule = rule
        self._samples = verification != "follow"
        self._traverses = verification == "traverse"
        self._looks_up = looks_up
        self._spare = spare
        self._shadows: dict[int, ChainSequence] = {}

    @property
    def forward_seconds(self) -> float:
        """Total seconds spent in forward passes of the draft model."""
        return self._draft.forward_seconds

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare the draft model for its target, and check that their vocabularies match."""
        pair(self._draft, target, tokenizer, self.other_tokenizer)

    def start(self, request: Request) -> None:
        """Create the draft model's copy of the request.

        If the prompt exceeds the draft model's context, no copy is created and nothing is drafted.
        """
        if len(request) <= self._draft.context_length:
            self._draft.reserve(
                0, min(request.max_length, self._draft.context_length) + self._spare
            )
            shadow = Request(request.token_ids, request.params, eos_token_ids=request.eos_token_ids)
            DraftSequence.open_for(request, shadow, self._draft)
            self._shadows[request.id] = ChainSequence(
                shadow,
                len(request),
                NgramIndex(_SETTINGS.min_lookup_ngram, _SETTINGS.max_lookup_ngram),
                self._rule.length,
            )

    def stop(self, request: Request) -> None:
        """Delete the draft model's copy of the request."""
        shadow = self._shadows.pop(request.id, None)
        if shadow is not None:
            self._draft.close(shadow.request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for all requests at once, so they share the draft model's forward passes."""
        trees = [EMPTY_TREE] * len(requests)
        rows = [row for row, request in enumerate(requests) if request.id in self._shadows]
        limits = [self._limit(requests[row], max_nodes[row]) for row in rows]
        if not any(limit > 0 for limit in limits):
            return trees
        for row in rows:
            self._catch_up(requests[row])
        drafted = [requests[row] for row in rows]
        self._prefill([self._shadows[request.id].request for request in drafted])
        for row, request, tree in zip(
            rows,
            drafted,
            self._draft_trees(drafted, limits, [max_nodes[row] for row in rows]),
            strict=True,
        ):
            request.counters.draft_forwards = self._shadows[
                request.id
            ].request.counters.target_forwards
            trees[row] = tree
        return trees

    def draws(self, request: Request) -> bool:
        """Return whether the request's drafts are sampled and include their distributions."""
        return self._samples and not request.params.greedy

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Update each request's draft length by applying the length rule to its outcome."""
        for outcome in outcomes:
            shadow = self._shadows.get(outcome.request.id)
            if shadow is not None and outcome.tree.token_ids:
                shadow.length = self._rule.next_length(
                    shadow.length, len(outcome.tree), len(outcome.accepted)
                )

    def _draft_trees(
        self, requests: list[Request], limits: list[int], max_nodes: list[int]
    ) -> list[DraftTree]:
        """Draft for requests whose copies in the draft model are up to date.

        Args:
            requests: Requests to draft for.
            limits: Maximum length of each request's chain.
            max_nodes: Maximum number of nodes per request.
        """
        return self._draft_chains(requests, limits)

    def _draft_chains(self, requests: list[Request], limits: list[int]) -> list[DraftTree]:
        """Draft until each chain reaches its limit or the length rule ends it.

        A request with a finished chain keeps its row in the batch, but its chain does not grow. A
        request with the limit 0 gets an empty tree.
        """
        shadows = [self._shadows[request.id] for request in requests]
        chains = [
            self._new_chain(request, shadow, limit)
            for request, shadow, limit in zip(requests, shadows, limits, strict=True)
        ]
        copies = [shadow.request for shadow in shadows]
        stream = sampler.DRAFT if self._samples else sampler.TARGET
        reduced = sampler.is_greedy(copies)
        vocabulary = self._draft.kept_ids if reduced else None
        while any(chain.open for chain in chains):
            guesses = [
                self._look_up(shadow, chain) for shadow, chain in zip(shadows, chains, strict=True)
            ]
            logits, hidden = self._forward(copies, guesses, reduced)
            rows = OpenRows(chains, self._rule)
            scores, drawn, figures = sampler.draw_tokens(
                logits, copies, guesses, stream, partial(rows.figures, hidden=hidden)
            )
            drawn = guess_tokens(copies, drawn)
            if vocabulary is not None:
                drawn = [vocabulary[columns].tolist() for columns in drawn]
            steps = [
                follow_text(guess, tokens, chain)
                for guess, tokens, chain in zip(guesses, drawn, chains, strict=True)
            ]
            runs = [step.run for step in steps]
            new = rows.new_tokens(runs, figures, vocabulary)
            probs = rows.distributions(runs, scores)
            self._draft.commit(self._extend(chains, steps, new, probs))
        return [self._as_tree(chain) if chain.tokens else EMPTY_TREE for chain in chains]

    def _new_chain(self, request: Request, shadow: ChainSequence, limit: int) -> Chain:
        end_ids = request.eos_token_ids if self._rule.stops_at_end else frozenset()
        if self._traverses and self.draws(request):
            seed = sampler.step_seed(request.params.seed, len(request) - request.prompt_length)
            shadow.request.params = replace(request.params, seed=seed)
        return Chain(shadow.request, limit, limit > 0, self.draws(request), end_ids)

    def _forward(
        self, copies: list[Request], guesses: list[DraftTree], reduced_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run the draft model, and return its logits and, if needed, its hidden states.

        The hidden states are None unless the length rule reads them.
        """
        if self._rule.reads_hidden:
            return self._draft.forward_with_hidden(copies, guesses, reduced_logits)
        return self._draft.forward(copies, guesses, reduced_logits), None

    def _extend(
        self, chains: list[Chain], steps: list[DraftStep], new: NewTokens, probs: Tensor | None
    ) -> list[list[int]]:
        """Append new tokens to the chains and to the draft model's copies of the requests.

        The length rule may end a chain before the last of its new tokens.

        Args:
            chains: Chains of the batch.
            steps: Result of the draft forward pass for each chain.
            new: New tokens of the open chains.
            probs: Distribution of each new token, [n, vocab]; None if no chain is sampled.
        Returns:
            For each chain, the nodes to commit to the draft model's KV cache. The newest token of
            the chain stays pending.
        """
        stops = iter(self._rule.stop_after(new))
        runs, first = [step.run for step in steps], 0
        for row, chain in enumerate(chains):
            if chain.open:
                last = first + len(runs[row])
                own = None if probs is None else probs[first:last]
                runs[row] = chain.extend(runs[row], next(stops), own)
                first = last
        for chain, run in zip(chains, runs, strict=True):
            chain.request.token_ids.extend(run)
        return [step.looked_up[: len(run) - 1] for step, run in zip(steps, runs, strict=True)]

    def _look_up(self, shadow: ChainSequence, chain: Chain) -> DraftTree:
        """Use prompt lookup to find tokens that the draft model is likely to predict."""
        return (
            DraftTree.chain(self._continuation(shadow, [], chain.room - 1))
            if chain.open
            else EMPTY_TREE
        )

    def _continuation(self, shadow: ChainSequence, path: list[int], room: int) -> list[int]:
        """Return up to `room` tokens after an earlier match of the newest tokens.

        Args:
            shadow: The draft model's copy of the request, with its n-gram index.
            path: Draft tokens that follow the copy's tokens.
            room: Maximum number of tokens.
        """
        if not self._looks_up or room <= 0:
            return []
        return shadow.index.continuation(
            shadow.request.token_ids + path, min(LOOKUP_LENGTH, room)
        ).tokens

    def _as_tree(self, chain: Chain) -> DraftTree:
        return chain_tree(chain, leaf_first=self._traverses)

    def _limit(self, request: Request, limit: int) -> int:
        """Return the maximum number of tokens to draft for a request.

        Args:
            request: Request to draft for.
            limit: Maximum number of nodes that the engine will verify.
        """
        room = self._draft.context_length - len(request)
        return min(self._shadows[request.id].length, limit, request.remaining - 1, room)

    def _catch_up(self, request: Request) -> None:
        """Append the target's newest tokens to the draft model's copy and to the index."""
        shadow = self._shadows[request.id]
        shadow.sync_with_target(self._draft, request.token_ids)
        if self._looks_up:
            shadow.index.update(request.token_ids)

    def _prefill(self, shadows: list[Request]) -> None:
        """Process all prefill chunks of each long prompt except for the last chunk."""
        while late := [
            shadow for shadow in shadows if not shadow.ends_prefill(self._draft.prefill_chunk)
        ]:
            self._draft.feed(late)
