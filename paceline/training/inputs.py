"""Read the recorded answers and texts for a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from paceline.errors import ConfigError
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.training.text_chunks import TextChunk, text_chunks
from paceline.util.machine import processor

T = TypeVar("T")


def read_texts(
    command: str, target: str | Path, inputs: Sequence[str], context: int
) -> list[TextChunk]:
    """Tokenise text files with the target's tokenizer, and cut them into chunks.

    Args:
        command: Name of the calling command, for error messages.
        target: Directory or hub id of the target.
        inputs: Text files, in a format that `paceline.datastore.inputs` reads.
        context: Maximum number of tokens per chunk.
    Raises:
        ConfigError: A file cannot be read, or the target has no tokenizer.
    """
    if not inputs:
        return []
    tokenizer = load_tokenizer(None, target)
    if tokenizer is None:
        raise ConfigError(
            f"{command}: the target {str(target)!r} has no tokenizer, which texts need. Leave the"
            " texts out."
        )
    return text_chunks(inputs, tokenizer, context)


def hold_out(command: str, answers: Sequence[T], every: int) -> tuple[list[T], list[T]]:
    """Split answers into answers for training and held-out answers.

    Args:
        command: Name of the calling command, for error messages.
        answers: Answers to split.
        every: One in `every` answers is held out, starting with the first; at least 2.
    Returns:
        The answers for training, and the held-out answers.
    Raises:
        ConfigError: There are fewer than `every` answers.
    """
    if len(answers) < every:
        raise ConfigError(
            f"{command}: got {len(answers)} answers; expected at least {every}, because one in"
            f" {every} is held out. Record more answers, or pass a smaller \0held_out=N\0."
        )
    training = [answer for number, answer in enumerate(answers) if number % every]
    return training, list(answers[::every])


def num_predicted(chunks: Sequence[TextChunk]) -> int:
    """Count the tokens of text chunks that are prediction targets."""
    return sum(len(chunk) - chunk.first for chunk in chunks)


def describe_run(recordings: Sequence[str | Path], inputs: Sequence[str]) -> dict[str, Any]:
    """Describe the files, machine and library versions of a training run."""
    return {
        "recordings": [Path(path).name for path in recordings],
        "texts": [Path(path).name for path in inputs],
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
