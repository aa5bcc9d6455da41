"""Test the oracle of the SpecDec++ paper: its lemma, errors, and seeds."""

from __future__ import annotations

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.errors import DrafterError
from paceline.model.cached_lm import CachedLM
from papers.specdec_pp.oracle import OracleRule
from tests.support.shared import COUNT, Pair


def disagreements(pair: Pair, prompt: list[int], answer: list[int]) -> set[int]:
    """Return the positions of the answer that the draft model predicts wrongly."""
    predicted = pair.draft(torch.tensor([prompt + answer])).logits[0].argmax(-1).tolist()
    return {
        position
        for position, token in enumerate(answer)
        if predicted[len(prompt) - 1 + position] != token
    }


@pytest.mark.parametrize("lookup", [True, False])
@pytest.mark.parametrize("batch", [1, 4])
def test_oracles_lemma(pair: Pair, lookup: bool, batch: int) -> None:
    """Test lemma 2.1 on the oracle.

    No token is discarded. The target runs once per disagreement, and once for the last token if
    the models agree on it.
    """
    known = {
        tuple(prompt): answer for prompt, answer in zip(pair.prompts, pair.answers, strict=True)
    }
    drafter = DraftModel(
        DraftModelOptions(use_prompt_lookup=lookup), CachedLM(pair.draft), OracleRule(known)
    )
    outs = LLM(pair.target, drafter=drafter, max_batch=batch).generate(
        pair.prompts, SamplingParams(COUNT)
    )
    for out, prompt, answer in zip(outs, pair.prompts, pair.answers, strict=True):
        assert out.token_ids == answer
        assert out.stats.accepted_tokens == out.stats.drafted_tokens
        assert out.stats.target_forwards == len(disagreements(pair, prompt, answer) | {COUNT - 1})
    assert sum(out.stats.drafted_tokens for out in outs) > 100


def test_oracle_refuses_unknown_prompts_and_sampling(pair: Pair) -> None:
    drafter = DraftModel(
        DraftModelOptions(),
        CachedLM(pair.draft),
        OracleRule({tuple(pair.prompts[1]): pair.answers[1]}),
    )
    llm = LLM(pair.target, drafter=drafter)
    with pytest.raises(DrafterError, match="verification='follow'"):
        llm.generate([pair.prompts[1]], SamplingParams(COUNT, 1.0))
    with pytest.raises(
        DrafterError, match=f"a prompt of {len(pair.prompts[2])} tokens is not among"
    ):
        llm.generate([pair.prompts[2]], SamplingParams(COUNT))
    # no drafts after the known answer
    (out,) = llm.generate([pair.prompts[1]], SamplingParams(2 * COUNT))
    assert out.token_ids[:COUNT] == pair.answers[1]
    assert out.stats.accepted_tokens == out.stats.drafted_tokens < COUNT


def test_oracle_follows_a_seed(pair: Pair) -> None:
    """With verification="follow", the oracle can use an answer of the same seed."""
    params = SamplingParams(COUNT, 1.0, seed=4)
    (plain,) = LLM(pair.target, "none").generate([pair.prompts[1]], params)
    rule = OracleRule({tuple(pair.prompts[1]): plain.token_ids})
    drafter = DraftModel(DraftModelOptions(verification="follow"), CachedLM(pair.draft), rule)
    (out,) = LLM(pair.target, drafter=drafter).generate([pair.prompts[1]], params)
    assert out.token_ids == plain.token_ids
    assert out.stats.drafted_tokens == out.stats.accepted_tokens > 0
