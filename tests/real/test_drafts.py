"""Test the trained draft model of SmolLM2 with every drafter that uses one."""

from __future__ import annotations

import pytest
import torch

from paceline import LLM, SamplingParams, demo
from paceline.bench import enlarge
from paceline.draft_head.find import find_draft_head
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import draft_lm, load_draft, load_model
from tests.support.real import NEEDS_REAL, Real

pytestmark = NEEDS_REAL
SPECS = (  # without a draft budget, so that timings do not decide
    "draft_model:max_draft_tokens=4,budget=false",
    "draft_model:budget=false",
    "specdec_pp:min_draft_tokens=1,budget=false",
    "ouroboros:budget=false",
    "auto:max_nodes=16,budget=false",
)
COUNT = 12


@pytest.fixture(scope="module")
def prompts(real: Real) -> list[list[int]]:
    return sorted(real.prompts.values(), key=len)[:4]


@pytest.fixture(scope="module")
def answers(real: Real, prompts: list[list[int]]) -> list[list[int]]:
    """Return the answers of transformers."""
    return real.references(prompts, COUNT)


@pytest.mark.parametrize("spec", SPECS)
def test_float32_answers_equal_transformers(
    real: Real, prompts: list[list[int]], answers: list[list[int]], spec: str
) -> None:
    llm = LLM(real.model, spec, demo.SMOLLM2_DRAFT, tokenizer=real.tokenizer)
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in outs] == answers
    assert sum(out.stats.accepted_tokens for out in outs) > 0


@pytest.mark.processor
@pytest.mark.parametrize("spec", SPECS)
def test_bfloat16_answers_equal_plain_decoding(prompts: list[list[int]], spec: str) -> None:
    model = load_model("smollm2", torch.bfloat16)
    plain, drafted = (
        LLM(model, name, draft, batch_invariant=True).generate(
            prompts, SamplingParams(max_new_tokens=COUNT)
        )
        for name, draft in (("none", None), (spec, demo.SMOLLM2_DRAFT))
    )
    assert [out.token_ids for out in drafted] == [out.token_ids for out in plain]


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_trained_draft_head_is_found(
    real: Real, prompts: list[list[int]], answers: list[list[int]], wide: bool
) -> None:
    """Check also that it predicts better than chance, also for the enlarged model."""
    model = CachedLM(enlarge(real.model, 768, 30) if wide else real.model)
    found = find_draft_head(model)
    assert found is not None
    assert found.levels == 3
    right = total = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        text = [*prompt, *answer]
        with torch.inference_mode():
            states = model.model.base_model(input_ids=torch.tensor([text])).last_hidden_state[0]
        trees = found.predict(states[len(prompt) - 1 : -2], text[len(prompt) : -1])
        right += sum(
            token in tree.token_ids[:16]
            for tree, token in zip(trees, text[len(prompt) + 1 :], strict=True)
        )
        total += len(trees)
    assert right > 0.4 * total


def test_acceptance_head_is_found() -> None:
    draft = load_draft(demo.SMOLLM2_DRAFT)
    assert AcceptanceHead.shipped(draft).card.draft == demo.SMOLLM2_DRAFT
    assert draft_lm(demo.SMOLLM2_DRAFT).model.num_parameters() < 6_000_000
