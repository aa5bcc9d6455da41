"""Test the draft model for llama-cpp-python, called as `Llama.generate` calls it."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.integrations.llama_cpp_python import LlamaCppDraftModel

TEXT = [5, 6, 7, 8, 9, 10, 11, 12] * 6


def decode(draft_model: LlamaCppDraftModel, prompt: list[int], answer: list[int]) -> int:
    """Decode an answer with drafts; return the number of forward passes."""
    text, forwards = prompt + answer[:1], 1
    while len(text) < len(prompt + answer):
        expected = (prompt + answer)[len(text) :]
        drafts = draft_model(np.array(text, dtype=np.intc)).tolist()
        accepted = 0
        while accepted < min(len(drafts), len(expected) - 1):
            if drafts[accepted] != expected[accepted]:
                break
            accepted += 1
        text += expected[: accepted + 1]
        forwards += 1
    assert text == prompt + answer
    return forwards


@pytest.mark.parametrize("drafter", ["sssd", "prompt_lookup"])
def test_repeated_text_takes_few_forward_passes(drafter: str) -> None:
    draft_model = LlamaCppDraftModel(drafter, max_draft_tokens=6)
    assert decode(draft_model, TEXT[:16], TEXT[16:]) < 0.5 * len(TEXT[16:])
    assert decode(draft_model, [3, 1, 4], TEXT[:24]) <= 24  # an unrelated text


def test_drafts_are_short_and_of_the_right_type() -> None:
    drafts = LlamaCppDraftModel("prompt_lookup", 3)(np.array(TEXT, dtype=np.intc))
    assert drafts.dtype == np.intc
    assert drafts.tolist() == [5, 6, 7]


def test_drafters_that_need_more_than_the_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="passes texts only"):
        LlamaCppDraftModel(create("lookahead"))
    with pytest.raises(ConfigError, match="max_draft_tokens"):
        LlamaCppDraftModel("sssd", 0)
