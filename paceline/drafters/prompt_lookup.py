"""Propose tokens that followed the newest tokens earlier in the text.

The method is described in Saxena 2023, "Prompt Lookup Decoding", and in LLMA (Yang et al. 2023).
The drafter looks up the n-grams at the end of the text, the longest n-gram first, and uses the most
recent match.

This implementation differs from these methods in two ways. First, it proposes a tree whose branches
are the continuations of several matches, including matches of shorter n-grams. Second, the tree
contains the most frequent tokens in the text as individual nodes. The options
`max_matches=1,max_frequent_tokens=0` yield a chain, as in the original methods. The drafter uses an
n-gram index, so the cost per step does not depend on the text length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from paceline.core.drafter import Drafter
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.prompt_lookup_settings import (
    CACHED_CONFIDENCES,
    FIRST_TOKEN,
    FREQUENT_DECAY,
    FREQUENT_TOKEN,
    LATER_TOKEN,
    MATCHES_PER_BRANCH,
)
from paceline.drafters.shared.file_options import PromptLookupOptions
from paceline.drafters.shared.frequencies import Frequencies
from paceline.drafters.shared.ngram_index import Continuation, NgramIndex


class PromptLookup(Drafter):
    """Drafts from earlier matches in the text, and from its most frequent tokens.

    For a given seed, the answers equal those of plain decoding.
    """

    name = "prompt_lookup"
    keeps_tokens = True
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
        """Create an empty index for the request; the first proposal indexes the prompt."""
        self._texts[request.id] = _IndexedText(
            NgramIndex(self._options.min_ngram, self._options.max_ngram), Frequencies()
        )

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return one tree per request.

        Continuations of longer matches come first. Among equally long matches, later ones come
        first.
        """
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
        max_matches = self._options.max_matches
        growing = _GrowingTree(limit, request.prompt_length)
        continuations = text.ngrams.continuations(request.token_ids, length)
        growing.add(islice(continuations, MATCHES_PER_BRANCH * max_matches), max_matches)
        growing.add_frequent(text.frequencies.most_frequent(self._options.frequent_limit))
        return growing.tree()

    def stop(self, request: Request) -> None:
        """Discard a request's index."""
        self._texts.pop(request.id, None)


class _IndexedText(NamedTuple):
    """The n-gram index and the token frequencies of one request's text."""

    ngrams: NgramIndex
    frequencies: Frequencies


class _GrowingTree:
    """Merges continuations and frequent tokens into one draft tree.

    Args:
        max_nodes: Maximum number of nodes in the tree.
        prompt_length: Number of tokens in the prompt. The origin of a node is the prompt if its
            token was copied from there, and the output otherwise.
    """

    def __init__(self, max_nodes: int, prompt_length: int) -> None:
        self._max_nodes, self._prompt_length = max_nodes, prompt_length
        self._nodes: dict[tuple[int, int], int] = {}  # by parent and token
        self._token_ids: list[int] = []
        self._parents: list[int] = []
        self._confidence: list[float] = []
        self._origins: list[Origin] = []
        self._branches = 0  # number of children of the root

    def add(self, continuations: Iterable[Continuation], max_branches: int) -> None:
        """Add continuations of matches until `max_branches` of them have added nodes.

        Args:
            continuations: Continuations of the matches, best match first.
            max_branches: Maximum number of branches to add.
        """
        branches = 0
        for tokens, match, position in continuations:
            known, parent = 0, -1
            for token in tokens:
                node = self._nodes.get((parent, token))
                if node is None:
                    break
                known, parent = known + 1, node
            # A node below a new one is new, too.
            new = tokens[known : known + self._max_nodes - len(self._token_ids)]
            if new:
                self._add_chain(new, parent, position + known)
                self._confidence += _confidence(branches, match, len(new))
                branches += 1
            if branches == max_branches or len(self._token_ids) == self._max_nodes:
                break

    def add_frequent(self, tokens: list[tuple[int, int]]) -> None:
        """Add the most frequent tokens that are not yet children of the root.

        Args:
            tokens: Pairs of a token and its first position in the text, most frequent first.
        """
        new = [pair for pair in tokens if (-1, pair[0]) not in self._nodes]
        del new[self._max_nodes - len(self._token_ids) :]
        self._token_ids += [token for token, _ in new]
        self._parents += [-1] * len(new)
        self._confidence += _frequent_confidence(self._branches, len(new))
        self._origins += [
            Origin.PROMPT if position < self._prompt_length else Origin.OUTPUT
            for _, position in new
        ]

    def _add_chain(self, tokens: list[int], parent: int, position: int) -> None:
        """Add a chain of new nodes, without recording their confidences.

        Args:
            tokens: Token ids of the new nodes.
            parent: Parent of the first node; -1 is the root.
            position: Position of the first token in the text.
        """
        first, count = len(self._token_ids), len(tokens)
        parents = [parent, *range(first, first + count - 1)]
        self._branches += parent < 0
        self._nodes.update(
            zip(zip(parents, tokens, strict=True), range(first, first + count), strict=True)
        )
        self._token_ids += tokens
        self._parents += parents
        in_prompt = min(count, max(0, self._prompt_length - position))
        self._origins += [Origin.PROMPT] * in_prompt + [Origin.OUTPUT] * (count - in_prompt)

    def tree(self) -> DraftTree:
        if not self._token_ids:
            return EMPTY_TREE
        return DraftTree(
            self._token_ids, self._parents, confidence=self._confidence, origins=self._origins
        )


@lru_cache(maxsize=CACHED_CONFIDENCES)
def _frequent_confidence(branches: int, count: int) -> tuple[float, ...]:
    """Return the acceptance probability of each frequent token, most frequent first.

    Args:
        branches: Number of other children of the root.
        count: Number of frequent tokens.
    """
    probability = FREQUENT_TOKEN[min(branches, len(FREQUENT_TOKEN) - 1)]
    return tuple(probability / (1 + FREQUENT_DECAY * rank) for rank in range(count))


def _confidence(branch: int, match: int, count: int) -> list[float]:
    """Return each new token's acceptance probability, given an accepted parent.

    Args:
        branch: Number of branches already in the tree.
        match: Number of tokens in the matching n-gram.
        count: Number of new tokens in the branch.
    """
    row = min(match, len(LATER_TOKEN)) - 1
    later = LATER_TOKEN[row]
    first = FIRST_TOKEN[min(branch, len(FIRST_TOKEN) - 1)][row]
    return [first, *later[: count - 1], *[later[-1]] * (count - 1 - len(later))]
