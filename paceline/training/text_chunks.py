"""What a draft learns from, as stretches of text with the target's distribution, or the next
token, behind each place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.datastore.inputs import documents
from paceline.errors import ConfigError
from paceline.recorded_answers.reading import read_answers, read_settings, read_tops
from paceline.recorded_answers.top_tokens import TopRows

_SORTED = (
    64  # batches whose stretches are sorted by length together, so that they have little padding
)


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Tokens, and from where on they are to be learnt.

    Attributes:
        token_ids: int32 [n].
        first: the first place to be predicted, at least 1.
        top: the target's distribution at each of the places first, first + 1, ... n - 1; None = the
            tokens themselves.
        category: of the prompt.
        states: [n, 1 + layers, hidden], what the target's LM head reads after each token, and some
            of its layers, for a draft that reads it; else None.
    """

    token_ids: NDArray[np.int32]
    first: int
    top: TopRows | None = None
    category: str = ""
    states: Tensor | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


class TextBatch(NamedTuple):
    """Stretches in one forward.

    Attributes:
        token_ids: [b, t], padded behind.
        places: [n], flat places of [b, t] whose next token is to be predicted.
        targets: [n, k], places in the kept vocabulary. probs: float32 [n, k], what the target says
            of them.
    """

    token_ids: Tensor
    places: Tensor
    targets: Tensor
    probs: Tensor


def recorded(paths: Iterable[str | Path], fingerprint: str) -> list[TextChunk]:
    """Return the answers of files of `paceline record`, with the target's distributions where they
    were recorded.

    Raises:
        ConfigError: a file that cannot be read, or answers of another model.
    """
    found = []
    for path in paths:
        settings = read_settings(path)
        answers = list(read_answers(path))
        assert settings is not None  # read_answers refuses other files
        if settings["model_fingerprint"] != fingerprint:
            raise ConfigError(
                f"answers {str(path)!r}: got those of {settings['model']!r}"
                f" ({settings['model_fingerprint'][:12]}); expected those of the target"
                f" ({fingerprint[:12]}). Name that target, or record its own."
            )
        tops: Iterable[TopRows | None] = read_tops(path) or [None] * len(answers)
        for answer, top in zip(answers, tops, strict=True):
            ids = np.array(answer.prompt_ids + answer.output_ids, dtype=np.int32)
            found.append(TextChunk(ids, len(answer.prompt_ids), top, answer.category))
    return found


def texts(inputs: Iterable[str], tokenizer: Any, context: int) -> list[TextChunk]:
    """Return documents (`paceline.datastore.inputs`) in stretches of at most `context` tokens,
    whose every token is learnt.
    """
    found = []
    for document in documents(inputs, tokenizer):
        ids = np.asarray(document, dtype=np.int32)
        found += [
            TextChunk(ids[start : start + context], 1) for start in range(0, len(ids) - 1, context)
        ]
    return [stretch for stretch in found if len(stretch) > 1]


def token_counts(stretches: Iterable[TextChunk], vocab_size: int) -> NDArray[np.int64]:
    """Return how often each token is to be predicted, [vocab]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for stretch in stretches:
        np.add.at(counts, stretch.token_ids[stretch.first :], 1)
    return counts


def fewest(counts: NDArray[Any], share: float, multiple: int = 1) -> NDArray[np.int64]:
    """Return the fewest places, most frequent first, that make up a share of all counts, rounded
    up to a multiple.
    """
    order = np.argsort(-counts, kind="stable")
    reached = np.cumsum(counts[order]) / counts.sum()
    count = int(np.searchsorted(reached, share)) + 1
    return order[: -(-count // multiple) * multiple]


def shortened(stretch: TextChunk, context: int) -> TextChunk:
    """Return a stretch of at most `context` tokens: what is too long loses the beginning of its
    prompt, then its end.
    """
    cut = min(max(0, len(stretch) - context), stretch.first - 1)
    ids, first = stretch.token_ids[cut : cut + context], stretch.first - cut
    count = len(ids) - first
    top = stretch.top and TopRows(stretch.top.token_ids[:count], stretch.top.log_probs[:count])
    return TextChunk(ids, first, top, stretch.category)


class Batches:
    """An endless, reproducible sequence of batches: epoch after epoch, each in an order of its own.

    Args:
        stretches: what is learnt from.
        size: tokens of a batch, padding included.
        seed: of the order.
    """

    def __init__(self, stretches: Sequence[TextChunk], size: int, seed: int) -> None:
        self._stretches, self._size, self._seed = stretches, size, seed

    def after(self, done: int) -> Iterator[list[TextChunk]]:
        """Yield the batches behind the first `done`."""
        epoch = 0
        while True:
            plan = self._epoch(np.random.default_rng((self._seed, epoch)))
            for rows in plan[done:]:
                yield [self._stretches[row] for row in rows]
            done, epoch = max(0, done - len(plan)), epoch + 1

    def _epoch(self, random: np.random.Generator) -> list[list[int]]:
        """Return which stretches go together, in the order of their batches."""
        order = random.permutation(len(self._stretches))
        lengths = np.array([len(stretch) for stretch in self._stretches])
        group = max(1, _SORTED * self._size // max(1, int(lengths.mean())))
        plan: list[list[int]] = []
        for start in range(0, len(order), group):
            rows: list[int] = []
            for row in sorted(order[start : start + group].tolist(), key=lambda row: -lengths[row]):
                if rows and lengths[rows[0]] * (len(rows) + 1) > self._size:
                    plan.append(rows)
                    rows = []
                rows.append(row)
            plan.append(rows)
        return [plan[at] for at in random.permutation(len(plan))]


def collated(stretches: Sequence[TextChunk], places: NDArray[np.int64]) -> TextBatch:
    """Return stretches as one batch; what the target says of tokens outside the kept vocabulary is
    left out.

    Args:
        places: [vocab], the place of every token in the kept vocabulary, -1 outside.
    """
    width = max(map(len, stretches))
    ids = np.zeros((len(stretches), width), dtype=np.int64)
    choices = max(
        1 if stretch.top is None else stretch.top.token_ids.shape[1] for stretch in stretches
    )
    flat, targets, probs = [], [], []
    for row, stretch in enumerate(stretches):
        ids[row, : len(stretch)] = stretch.token_ids
        count = len(stretch) - stretch.first
        flat.append(row * width + np.arange(stretch.first - 1, len(stretch) - 1))
        tokens, shares = (
            np.zeros((count, choices), dtype=np.int64),
            np.zeros((count, choices), dtype=np.float32),
        )
        if stretch.top is None:
            tokens[:, 0], shares[:, 0] = stretch.token_ids[stretch.first :], 1
        else:
            own = stretch.top.token_ids.shape[1]
            tokens[:, :own], shares[:, :own] = stretch.top.token_ids, np.exp(stretch.top.log_probs)
        targets.append(tokens)
        probs.append(shares)
    target = places[np.concatenate(targets)]
    prob = np.where(target < 0, 0, np.concatenate(probs))
    share = prob.sum(1, keepdims=True)
    known = share[:, 0] > 0
    arrays = (
        np.concatenate(flat)[known],
        np.maximum(target, 0)[known],
        (prob / np.maximum(share, 1e-9))[known],
    )
    return TextBatch(torch.from_numpy(ids), *map(torch.from_numpy, arrays))
