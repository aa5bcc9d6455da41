"""Fixture of training texts for the tests of draft models."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.training.text_chunks import TextChunk
from tests.support.shared import Pair


@pytest.fixture(scope="module")
def answers(pair: Pair) -> list[TextChunk]:
    """Return the target's answers as training chunks."""
    both = zip(pair.prompts, pair.answers, strict=True)
    return [
        TextChunk(np.array(prompt + answer, dtype=np.int32), len(prompt)) for prompt, answer in both
    ]
