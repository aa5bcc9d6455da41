"""Prompt lookup: propose what followed earlier occurrences of the newest n-gram.

Saxena 2023, "Prompt Lookup Decoding"; also LLMA (Yang et al. 2023). The drafter looks up the
longest n-gram first and takes the most recent match.

This implementation differs from the paper in two ways. It proposes a tree, whose branches are the
continuations of earlier matches and of shorter n-grams. The most frequent tokens of the text become
single nodes. `max_matches=1,max_frequent_tokens=0` gives the paper's chain. An index of the n-grams
keeps the cost of a step independent of the length of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from paceline.core.drafter import Drafter
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.shared.file_options import PromptLookupOptions
from paceline.drafters.shared.frequencies import Frequencies
from paceline.drafters.shared.ngram_index import Continuation, NgramIndex

# Chances behind a match of one token, two, three, and more, counted on 120 recorded answers of
# SmolLM2; the budget corrects them. Of the first token that the first match proposes, of one that
# the second or a later one does; of the tokens behind these.
_FIRST = ((0.22, 0.53, 0.62, 0.8), (0.13, 0.19, 0.25, 0.68), (0.06, 0.07, 0.25, 0.7))
_NEXT = (
    (0.52, 0.63, 0.74, 0.8),
    (0.6, 0.74, 0.78, 0.88),
    (0.64, 0.75, 0.8, 0.88),
    (0.92, 0.89, 0.88, 0.92),
)
# Of the most frequent token, where so many branches, or more, are there; that of others is divided
# by 1 + _FALLING * their rank.
_FREQUENT, _FALLING = (0.04, 0.018, 0.022), 0.1
_LOOKS = 4  # places that are looked at for each match: many are followed by the same


class PromptLookup(Drafter):
    """Draft from matches in the text; lossless and seed-identical at any temperature."""

    name = "prompt_lookup"
    Options = PromptLookupOptions

    def __init__(self, options: PromptLookupOptions) -> None:
        self._options = options
        self.budget = options.budget
        self._texts: dict[int, _IndexedText] = {}

    @classmethod
    def build(cls, options: PromptLookupOptions) -> PromptLookup:
        """Build the drafter from its options."""
        return cls(options)

    def start(self, request: Request) -> None:
        """Open an empty index; the first proposal indexes the prompt."""
        self._texts[request.id] = _IndexedText(
            NgramIndex(self._options.min_ngram, self._options.max_ngram), Frequencies()
        )

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return one tree per request; the longest and latest match comes first."""
        return [
            self._propose(request, self._texts[request.id], limit)
            for request, limit in zip(requests, max_nodes, strict=True)
        ]

    def _propose(self, request: Request, text: _IndexedText, limit: int) -> DraftTree:
        length = min(self._options.max_draft_tokens, limit, request.remaining - 1)
        text.ngrams.update(request.token_ids)
        if self._options.frequent_limit:
            text.frequencies.update(request.token_ids)
        if length <= 0:
            return EMPTY_TREE
        growing = _Growing(limit, request.prompt_length)
        found = text.ngrams.continuations(request.token_ids, length)
        growing.join(islice(found, _LOOKS * self._options.max_matches), self._options.max_matches)
        growing.add_frequent(text.frequencies.most_frequent(self._options.frequent_limit))
        return growing.tree()

    def stop(self, request: Request) -> None:
        """Drop the index of a request."""
        self._texts.pop(request.id, None)


class _IndexedText(NamedTuple):
    ngrams: NgramIndex
    frequencies: Frequencies


class _Growing:
    """Grow one draft tree up to a maximum number of nodes."""

    def __init__(self, most: int, prompt_length: int) -> None:
        self._most, self._prompt_length = most, prompt_length
        self._nodes: dict[tuple[int, int], int] = {}  # by parent and token
        self._confidence: list[float] = []
        self._origins: list[Origin] = []

    def join(self, found: Iterable[Continuation], matches: int) -> None:
        """Add continuations until `matches` different branches exist."""
        branches = 0
        for tokens, matched, place in found:
            parent, fresh = -1, 0
            for offset, token in enumerate(tokens):
                node = self._nodes.get((parent, token))
                if node is None:
                    if len(self._nodes) == self._most:
                        break
                    node = self._add(
                        parent, token, place + offset, _confidence(branches, matched, fresh)
                    )
                    fresh += 1
                parent = node
            branches += fresh > 0
            if branches == matches or len(self._nodes) == self._most:
                break

    def add_frequent(self, tokens: list[tuple[int, int]]) -> None:
        """Add the most frequent tokens that are not children of the root yet."""
        chance = _FREQUENT[min(sum(parent < 0 for parent, _ in self._nodes), len(_FREQUENT) - 1)]
        fresh = [one for one in tokens if (-1, one[0]) not in self._nodes]
        for rank, (token, place) in enumerate(fresh[: self._most - len(self._nodes)]):
            self._add(-1, token, place, chance / (1 + _FALLING * rank))

    def _add(self, parent: int, token: int, place: int, confidence: float) -> int:
        node = self._nodes[parent, token] = len(self._nodes)
        self._confidence.append(confidence)
        self._origins.append(Origin.PROMPT if place < self._prompt_length else Origin.OUTPUT)
        return node

    def tree(self) -> DraftTree:
        if not self._nodes:
            return EMPTY_TREE
        parents, token_ids = zip(*self._nodes, strict=True)
        return DraftTree(
            [*token_ids], [*parents], confidence=self._confidence, origins=self._origins
        )


def _confidence(branch: int, matched: int, fresh: int) -> float:
    """Return the probability of a token given its parent.

    Args:
        branch: Number of branches before this one.
        matched: Tokens of the matching n-gram.
        fresh: Nodes that the branch has added before this one.
    """
    match = min(matched, len(_NEXT)) - 1
    return (
        _NEXT[match][min(fresh, len(_NEXT[0])) - 1]
        if fresh
        else _FIRST[min(branch, len(_FIRST) - 1)][match]
    )
