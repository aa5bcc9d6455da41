"""Define the lookahead window (Fu et al. 2024, 3.1): N - 1 levels of W guesses.

Level 0 comes from the oldest iteration. Column 0 of this level is the newest token of the text, so
the level stores only the W - 1 tokens after that token. Every other level stores W tokens, which
the target predicted from the previous level. In the draft tree, level 0 is a chain from the root,
and the node at (level l, column i) is a child of (l - 1, i). The attention mask and the positions
of this tree are the same as in the paper.

For W = 3 and N = 3, with newest token c (the root) and predictions x at the newest level:

    column        0   1   2
    level 0       c   a1  a2
    level 1       b0  b1  b2
    predictions   x0  x1  x2      new n-grams: c b0 x0,  a1 b1 x1,  a2 b2 x2
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from paceline.core.origin import Origin
from paceline.drafters.shared.ngram_pool import Ngram

AddNode = Callable[[int, int, Origin], int]  # (token, parent, origin) -> node


class LookaheadWindow:
    """The lookahead window of one request.

    At first, the levels contain tokens from the prompt. Each new level contains the tokens that the
    target predicted in one iteration.

    Args:
        levels: Token ids of each level, starting with the oldest iteration.
        ngram: N, the n-gram length; a full window has N - 1 levels.
    """

    def __init__(self, levels: list[list[int]], ngram: int) -> None:
        self.levels = levels
        self._ngram = ngram

    @staticmethod
    def from_phrases(
        prompt: list[int], width: int, ngram: int, rng: random.Random
    ) -> LookaheadWindow:
        """Return a window filled with phrases from random positions in the prompt.

        All levels of the window exist, so it completes n-grams from the first step on.

        Args:
            prompt: Token ids of the prompt.
            width: W, the number of columns.
            ngram: N, the n-gram length in tokens.
            rng: Random generator for the positions.
        """
        starts = [rng.randrange(max(1, len(prompt) - ngram + 2)) for _ in range(width)]
        levels = [
            [prompt[(start + level) % len(prompt)] for start in starts]
            for level in range(ngram - 1)
        ]
        return LookaheadWindow([levels[0][1:], *levels[1:]], ngram)

    @staticmethod
    def from_tokens(
        prompt: list[int], width: int, ngram: int, rng: random.Random
    ) -> LookaheadWindow:
        """Return a one-level window of random prompt tokens, as in the authors' code.

        Args:
            prompt: Token ids of the prompt.
            width: W, the number of columns in later levels.
            ngram: N, the n-gram length in tokens.
            rng: Random generator for the tokens.
        """
        return LookaheadWindow([[rng.choice(prompt) for _ in range(width + ngram - 3)]], ngram)

    @property
    def full(self) -> bool:
        """Return whether all levels exist, so that the window completes n-grams."""
        return len(self.levels) == self._ngram - 1

    def __len__(self) -> int:
        return sum(map(len, self.levels))

    def add_to_tree(self, add: AddNode) -> list[int]:
        """Add the window's tokens to a draft tree.

        Args:
            add: Function (token, parent, origin) that adds a node and returns its index.
        Returns:
            Indices of the newest level's nodes, one per column; -1 is the root.
        """
        chain = [-1]
        for token in self.levels[0]:
            chain.append(add(token, chain[-1], Origin.WINDOW))
        if len(self.levels) == 1:
            return chain if self.full else chain[1:]
        nodes = chain[: len(self.levels[1])]
        for level in self.levels[1:]:
            nodes = [
                add(token, node, Origin.WINDOW) for token, node in zip(level, nodes, strict=True)
            ]
        return nodes

    def ngrams(self, context: Ngram, answers: list[int]) -> Iterator[tuple[Ngram, Ngram]]:
        """Yield the n-grams that a full window completes in this step, one per column.

        Args:
            context: The newest token of the text (the root), preceded by the previous token, if
                any.
            answers: The target's prediction after each node of the newest level.
        Returns:
            Pairs of a key and a continuation. The continuation is the last N - 1 tokens of an
            n-gram. The key is the one or two tokens before the continuation.
        """
        text = (*context, *self.levels[0])
        for column, ngram in enumerate(zip(*self.levels[1:], answers, strict=True)):
            end = len(context) + column
            yield text[max(0, end - 2) : end], ngram

    def slide(self, answers: list[int]) -> None:
        """Advance by one position, and add the target's predictions as a new level.

        A full window drops its oldest level.

        Args:
            answers: The target's prediction after each node of the newest level before the call.
        """
        if self.full:
            levels = [*self.levels[1:], answers]
            self.levels = [levels[0][1:], *levels[1:]]
        elif len(self.levels) == 1:
            self.levels = [self.levels[0][1:], answers]
        else:
            self.levels = [*(level[1:] for level in self.levels), answers[1:]]
