"""Prompt lookup: the newest n-gram has occurred before, so propose what followed it then.

Saxena 2023, "Prompt Lookup Decoding"; also LLMA (Yang et al. 2023). Longest n-gram first, most recent match, the
continuation clipped at the end of the text.

What is different here: what followed at earlier places, and behind shorter n-grams, is proposed beside it, as branches of a tree
(`matches=1` is the paper's chain); and places are kept in a dictionary, so that a step costs a few look-ups whatever the length
of the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from itertools import islice

from paceline.drafters.shared.file_options import PromptLookupOptions
from paceline.drafters.shared.ngram_index import Continuation, NgramIndex
from paceline.engine.drafter import Drafter
from paceline.engine.origin import Origin
from paceline.engine.sequence import Sequence
from paceline.engine.tree import EMPTY_TREE, DraftTree

# Chances behind a match of one token, two, three, and more, counted on 120 recorded answers of SmolLM2; the budget corrects them.
# Of the first token that the first match proposes, of one that the second or a later one does; of the tokens behind these.
_FIRST = ((0.22, 0.53, 0.62, 0.8), (0.13, 0.19, 0.25, 0.68), (0.06, 0.07, 0.25, 0.7))
_NEXT = ((0.52, 0.63, 0.74, 0.8), (0.6, 0.74, 0.78, 0.88), (0.64, 0.75, 0.8, 0.88), (0.92, 0.89, 0.88, 0.92))
_LOOKS = 4  # places that are looked at for each match: many are followed by the same


class PromptLookup(Drafter):
    """Guesses only: lossless and seed-identical at any temperature."""

    name = "prompt_lookup"
    Options = PromptLookupOptions

    def __init__(self, options: PromptLookupOptions) -> None:
        self._options = options
        self.budget = options.budget
        self._index: dict[int, NgramIndex] = {}

    @classmethod
    def build(cls, options: PromptLookupOptions) -> PromptLookup:
        """Build it from its options."""
        return cls(options)

    def start(self, seq: Sequence) -> None:
        """Open an empty index; the prompt is indexed with the first proposal."""
        self._index[seq.id] = NgramIndex(self._options.min_ngram, self._options.max_ngram)

    def propose(self, seqs: ListLike[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Return a tree per sequence, empty where no match is found; first in it is what followed the longest, latest match."""
        trees = []
        for seq, limit in zip(seqs, max_nodes, strict=True):
            length = min(self._options.length, limit, seq.remaining - 1)
            index = self._index[seq.id]
            index.update(seq.token_ids)
            found = islice(index.continuations(seq.token_ids, length), _LOOKS * self._options.matches) if length > 0 else ()
            trees.append(_tree(found, self._options.matches, limit, seq.prompt_length))
        return trees

    def stop(self, seq: Sequence) -> None:
        """Drop the index."""
        self._index.pop(seq.id, None)


def _tree(found: Iterable[Continuation], matches: int, most: int, prompt_length: int) -> DraftTree:
    """Join continuations, of which so many may differ, into a tree of at most `most` nodes."""
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    confidence: list[float] = []
    origins: list[Origin] = []
    branches = 0
    for tokens, matched, place in found:
        parent, fresh = -1, 0
        for offset, token in enumerate(tokens):
            node = nodes.get((parent, token))
            if node is None:
                if len(nodes) == most:
                    break
                node = nodes[parent, token] = len(nodes)
                confidence.append(_confidence(branches, matched, fresh))
                origins.append(Origin.PROMPT if place + offset < prompt_length else Origin.OUTPUT)
                fresh += 1
            parent = node
        branches += fresh > 0
        if branches == matches or len(nodes) == most:
            break
    if not nodes:
        return EMPTY_TREE
    return DraftTree([token for _, token in nodes], [parent for parent, _ in nodes], confidence=confidence, origins=origins)


def _confidence(branch: int, matched: int, fresh: int) -> float:
    """Return the chance of a token, given those before it, that is the `fresh`-th its branch adds behind a match."""
    match = min(matched, len(_NEXT)) - 1
    return _NEXT[match][min(fresh, len(_NEXT[0])) - 1] if fresh else _FIRST[min(branch, len(_FIRST) - 1)][match]
