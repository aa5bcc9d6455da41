"""Models, prompts and strategies for tests of Strategy."""

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
    EVERY_DRAFTER,
    VOCAB,
    cached_model,
    padded,
    random_ids,
)
from tests.support.shared import has_draft, near_copies, with_head, with_store, without_budget


@pytest.fixture(scope="module")
def target() -> Any:
    return cached_model("llama", "sdpa")


@pytest.fixture(scope="module")
def draft() -> Any:
    """Return the target with noise; most of its drafts are accepted."""
    return cached_model("llama", "sdpa", noise=0.02)


@pytest.fixture(scope="module")
def text() -> Any:
    """Return a tokenizer whose tokens are pairs of letters."""
    letters = "abcdefghijklmnop"
    pairs = {
        one + other: 16 * row + column
        for row, one in enumerate(letters)
        for column, other in enumerate(letters)
    }
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(pairs, unk_token="aa"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(".."), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def one() -> dict[str, Tensor]:
    """Return a repetitive prompt, so that lookups find continuations."""
    return padded([random_ids(1, 13) * 3])


@pytest.fixture(scope="module")
def three() -> dict[str, Tensor]:
    """Return three repetitive prompts of different lengths, padded on the left."""
    return padded([random_ids(2, 10) * 3, random_ids(1, 13) * 3, random_ids(3, 18) * 2])


@pytest.fixture(scope="module")
def strategies(draft: Any) -> dict[str, Strategy]:
    return {spec: strategy_of(spec, draft) for spec in DRAFTERS}


@pytest.fixture(scope="module")
def every_strategy(target: Any, draft: Any, one: Any, three: Any) -> dict[str, Strategy]:
    """Return a strategy for every drafter.

    Datastores contain near copies of the outputs.
    """
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    texts = [
        row.tolist() for inputs in (one, three) for row in target.generate(**inputs, **options)
    ]
    store = near_copies(texts * 2, VOCAB)
    return {spec: strategy_of(spec, draft, store) for spec in EVERY_DRAFTER}


def strategy_of(spec: str, draft: Any, store: tuple[tuple[int, ...], ...] = ()) -> Strategy:
    chosen = with_store(with_head(without_budget(spec), draft), store, VOCAB)
    return Strategy(chosen, draft_model=draft if has_draft(spec) else None)
