"""Models, prompts and strategies for the drop-in."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from torch import Tensor
from transformers import (
    PreTrainedTokenizerFast,
)

from paceline.integrations.transformers import Strategy
from tests.integrations.common import (
    DRAFTERS,
    made,
    padded,
    words,
)
from tests.support.shared import without_budget


@pytest.fixture(scope="module")
def target() -> Any:
    return made("llama", "sdpa")


@pytest.fixture(scope="module")
def draft() -> Any:
    """The target with noise: most of its guesses are right."""
    return made("llama", "sdpa", noise=0.02)


@pytest.fixture(scope="module")
def text() -> Any:
    """A tokenizer whose tokens are pairs of letters."""
    letters = "abcdefghijklmnop"
    pairs = {one + other: 16 * row + column for row, one in enumerate(letters) for column, other in enumerate(letters)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(pairs, unk_token="aa"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(".."), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def one() -> dict[str, Tensor]:
    """A prompt that repeats itself, so that lookups find something."""
    return padded([words(1, 13) * 3])


@pytest.fixture(scope="module")
def three() -> dict[str, Tensor]:
    """Three such prompts of different length, padded on the left."""
    return padded([words(2, 10) * 3, words(1, 13) * 3, words(3, 18) * 2])


@pytest.fixture(scope="module")
def strategies(draft: Any) -> dict[str, Strategy]:
    return {spec: Strategy(without_budget(spec), draft_model=draft) for spec in DRAFTERS}
