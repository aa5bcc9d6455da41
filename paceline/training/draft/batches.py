"""Group the chunks of training text into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.training.settings import LENGTH_SORTED_BATCHES
from paceline.training.text_chunks import TextChunk


class TextBatch(NamedTuple):
    """A batch of text chunks, with the training targets from the target model.

    Attributes:
        token_ids: Token ids of b chunks, padded at the end to t tokens, [b, t].
        positions: Positions whose next token the draft model learns to predict, as indices into the
            flattened `token_ids`, [n].
        targets: For each of these positions, the target's k most likely next tokens, as indices in
            the reduced vocabulary, [n, k].
        probs: The target's probabilities of `targets`, float32 [n, k].
    """

    token_ids: Tensor
    positions: Tensor
    targets: Tensor
    probs: Tensor


class Batches:
    """Groups text chunks into batches, reproducibly but differently in each epoch.

    Args:
        chunks: Chunks to train on.
        size: Maximum number of tokens per batch, including padding. A longer chunk is the only
            chunk in its batch.
        seed: Random seed for the order of the chunks.
    """

    def __init__(self, chunks: Sequence[TextChunk], size: int, seed: int) -> None:
        self._chunks, self._size, self._seed = chunks, size, seed

    def after(self, num_used: int) -> Iterator[list[TextChunk]]:
        """Yield batches indefinitely, skipping the first `num_used` batches."""
        epoch = 0
        while True:
            plan = self._epoch(np.random.default_rng((self._seed, epoch)))
            for rows in plan[num_used:]:
                yield [self._chunks[row] for row in rows]
            num_used, epoch = max(0, num_used - len(plan)), epoch + 1

    def _epoch(self, random: np.random.Generator) -> list[list[int]]:
        """Return the indices of the chunks in each batch of an epoch."""
        order = random.permutation(len(self._chunks))
        lengths = np.array([len(chunk) for chunk in self._chunks])
        group = max(1, LENGTH_SORTED_BATCHES * self._size // max(1, int(lengths.mean())))
        plan: list[list[int]] = []
        for start in range(0, len(order), group):
            rows: list[int] = []
            for row in sorted(order[start : start + group].tolist(), key=lambda row: -lengths[row]):
                if rows and lengths[rows[0]] * (len(rows) + 1) > self._size:
                    plan.append(rows)
                    rows = []
                rows.append(row)
            plan.append(rows)
        return [plan[index] for index in random.permutation(len(plan))]


def collated(chunks: Sequence[TextChunk], vocabulary_index: NDArray[np.int64]) -> TextBatch:
    """Pad text chunks to the same length, and return them as one batch.

    The batch omits the probabilities of tokens outside the reduced vocabulary.

    Args:
        chunks: Chunks in the batch.
        vocabulary_index: Index of each token in the reduced vocabulary, [vocabulary]; -1 for tokens
            outside the reduced vocabulary.
    """
    width = max(map(len, chunks))
    ids = np.zeros((len(chunks), width), dtype=np.int64)
    choices = max(1 if chunk.top is None else chunk.top.token_ids.shape[1] for chunk in chunks)
    positions, targets, probs = [], [], []
    for row, chunk in enumerate(chunks):
        ids[row, : len(chunk)] = chunk.token_ids
        count = len(chunk) - chunk.first
        positions.append(row * width + np.arange(chunk.first - 1, len(chunk) - 1))
        tokens = np.zeros((count, choices), dtype=np.int64)
        shares = np.zeros((count, choices), dtype=np.float32)
        if chunk.top is None:
            tokens[:, 0], shares[:, 0] = chunk.token_ids[chunk.first :], 1
        else:
            num_top = chunk.top.token_ids.shape[1]
            tokens[:, :num_top] = chunk.top.token_ids
            shares[:, :num_top] = np.exp(chunk.top.log_probs)
        targets.append(tokens)
        probs.append(shares)
    target = vocabulary_index[np.concatenate(targets)]
    prob = np.where(target < 0, 0, np.concatenate(probs))
    total = prob.sum(1, keepdims=True)
    known = total[:, 0] > 0
    arrays = (
        np.concatenate(positions)[known],
        np.maximum(target, 0)[known],
        (prob / np.maximum(total, 1e-9))[known],
    )
    return TextBatch(torch.from_numpy(ids), *map(torch.from_numpy, arrays))
