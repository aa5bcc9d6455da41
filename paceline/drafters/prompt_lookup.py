"""Prompt lookup: the newest n-gram has occurred before, so propose what followed it then.

Saxena 2023, "Prompt Lookup Decoding"; also LLMA (Yang et al. 2023). Longest n-gram first, most recent match, the
continuation clipped at the end of the text.

What is different here: each n-gram's latest place is kept in a dictionary, so a step costs `max_ngram` look-ups whatever the
length of the text.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike

from paceline.drafters.shared.file_options import PromptLookupOptions
from paceline.drafters.shared.ngram_index import Continuation, NgramIndex
from paceline.engine.drafter import Drafter
from paceline.engine.origin import Origin
from paceline.engine.sequence import Sequence
from paceline.engine.tree import EMPTY_TREE, DraftTree

_FIRST = (0.35, 0.55, 0.65)  # chance of the first token behind a match of one token, two, and more; all in different steps of
_NEXT = (0.75, 0.85, 0.9)  # `paceline.engine.reliability`; and of the tokens behind it


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
        """Return a chain per sequence, empty where no match is found."""
        trees = []
        for seq, limit in zip(seqs, max_nodes, strict=True):
            length = min(self._options.length, limit, seq.remaining - 1)
            index = self._index[seq.id]
            index.update(seq.token_ids)
            trees.append(_chain(index.continuation(seq.token_ids, length), seq.prompt_length) if length > 0 else EMPTY_TREE)
        return trees

    def stop(self, seq: Sequence) -> None:
        """Drop the index."""
        self._index.pop(seq.id, None)


def _chain(found: Continuation, prompt_length: int) -> DraftTree:
    if not found.tokens:
        return EMPTY_TREE
    count = len(found.tokens)
    of_prompt = min(count, max(0, prompt_length - found.place))
    origins = [Origin.PROMPT] * of_prompt + [Origin.OUTPUT] * (count - of_prompt)
    return DraftTree.chain(found.tokens, confidence=_confidence(found.matched, count), origins=origins)


def _confidence(matched: int, count: int) -> list[float]:
    """Return the chances of `count` tokens behind a match of so many, each given those before it: the budget corrects them."""
    first = _FIRST[min(matched, len(_FIRST)) - 1]
    return [first, *_NEXT[: count - 1], *[_NEXT[-1]] * (count - 1 - len(_NEXT))]
