"""Define chunks of training text, and the target distributions recorded for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paceline.datastore.inputs import documents
from paceline.errors import ConfigError
from paceline.recorded_answers.lines import RecordedAnswer
from paceline.recorded_answers.reading import read_answers, read_settings, read_tops
from paceline.recorded_answers.top_tokens import TopRows


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of training text, with the target's distributions and hidden states.

    Attributes:
        token_ids: Token ids, int32 [n].
        first: Index of the first token that is a prediction target; at least 1.
        top: The target's distributions for the tokens first, first + 1, ..., n - 1. None means that
            the training targets are the tokens themselves.
        category: Category of the prompt, for the evaluation.
        states: The target's hidden states after each token, [n, 1 + layers, hidden]: the input to
            the LM head, followed by the inputs to some layers. None until the states have been
            computed.
    """

    token_ids: NDArray[np.int32]
    first: int
    top: TopRows | None = None
    category: str = ""
    states: Tensor | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


def read_own_answers(
    path: str | Path, fingerprint: str
) -> tuple[dict[str, Any], list[RecordedAnswer]]:
    """Read the settings and answers from a file written by `paceline record`.

    Args:
        path: File to read.
        fingerprint: Fingerprint of the target, from `model_identity`.
    Raises:
        ConfigError: The file cannot be read, or contains answers of a different model.
    """
    settings = read_settings(path)
    answers = list(read_answers(path))
    assert settings is not None  # read_answers rejects other files
    if settings["model_fingerprint"] != fingerprint:
        raise ConfigError(
            f"answers {str(path)!r}: got answers of {settings['model']!r}"
            f" ({settings['model_fingerprint'][:12]}); expected those of the target"
            f" ({fingerprint[:12]}). Name that target, or record its own."
        )
    return settings, answers


def recorded_chunks(paths: Iterable[str | Path], fingerprint: str) -> list[TextChunk]:
    """Read files written by `paceline record`; return one text chunk per answer.

    The chunks include the target's distributions if these were recorded.

    Args:
        paths: Files to read.
        fingerprint: Fingerprint of the target, from `model_identity`.
    Raises:
        ConfigError: A file cannot be read, or contains answers of a different model.
    """
    chunks = []
    for path in paths:
        _, answers = read_own_answers(path, fingerprint)
        tops: Iterable[TopRows | None] = read_tops(path) or [None] * len(answers)
        for answer, top in zip(answers, tops, strict=True):
            token_ids = np.array(answer.prompt_ids + answer.output_ids, dtype=np.int32)
            chunks.append(TextChunk(token_ids, len(answer.prompt_ids), top, answer.category))
    return chunks


def text_chunks(inputs: Iterable[str], tokenizer: Any, context: int) -> list[TextChunk]:
    """Tokenise text files, and cut the tokens into chunks.

    All tokens of a chunk except the first are prediction targets.

    Args:
        inputs: Text files, in a format that `paceline.datastore.inputs` reads.
        tokenizer: The target's tokenizer.
        context: Maximum number of tokens per chunk.
    """
    chunks = []
    for document in documents(inputs, tokenizer):
        ids = np.asarray(document, dtype=np.int32)
        chunks += [
            TextChunk(ids[start : start + context], 1) for start in range(0, len(ids) - 1, context)
        ]
    return [chunk for chunk in chunks if len(chunk) > 1]


def shortened(chunk: TextChunk, context: int) -> TextChunk:
    """Shorten a chunk to at most `context` tokens.

    Tokens are removed first from the start of the prompt, then from the end of the chunk.
    """
    cut = min(max(0, len(chunk) - context), chunk.first - 1)
    ids, first = chunk.token_ids[cut : cut + context], chunk.first - cut
    count = len(ids) - first
    top = chunk.top and TopRows(chunk.top.token_ids[:count], chunk.top.log_probs[:count])
    return TextChunk(ids, first, top, chunk.category)


def token_counts(chunks: Iterable[TextChunk], vocab_size: int) -> NDArray[np.int64]:
    """Count how often each token is a prediction target.

    Returns:
        Counts, [vocabulary].
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for chunk in chunks:
        np.add.at(counts, chunk.token_ids[chunk.first :], 1)
    return counts


def smallest_cover(counts: NDArray[Any], share: float, multiple: int = 1) -> NDArray[np.int64]:
    """Return the smallest set of indices that covers a fraction of the total count.

    Args:
        counts: Count of each index.
        share: Fraction of the total count to cover; from 0 to 1. The result contains the indices
            with the highest counts.
        multiple: Round the number of indices up to a multiple of this number.
    """
    order = np.argsort(-counts, kind="stable")
    reached = np.cumsum(counts[order]) / counts.sum()
    count = int(np.searchsorted(reached, share)) + 1
    return order[: -(-count // multiple) * multiple]
