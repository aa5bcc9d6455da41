"""Test decoding on CUDA: answers of all drafters equal `generate` of transformers there."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline import LLM, Completion, SamplingParams
from paceline.drafters import available, entry
from tests.support.shared import SAME_SEED, Pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # CUDA's own warnings depend on the machine
]

DEVICE = "cuda"
LENGTH, PROMPTS = 24, 6
GUESSES = [name for name in available() if not entry(name).needs_draft_model]
SEEDED = [name for name in available() if name in SAME_SEED]
# Largest gap between the two best logits at which another batch size may change the choice,
# because its kernels round differently.
NEAR_TIE = {torch.float32: 1e-3, torch.bfloat16: 0.25}


@pytest.fixture(scope="module")
def cuda_pair(pair: Pair) -> Pair:
    """Return the pair on the GPU, with fewer prompts and the answers of `generate`."""
    target, draft = (copy.deepcopy(model).to(DEVICE) for model in (pair.target, pair.draft))
    prompts = pair.prompts[:PROMPTS]
    return Pair(target, draft, prompts, [generate_on_cuda(target, prompt) for prompt in prompts])


def generate_on_cuda(model: Any, prompt: list[int], **options: Any) -> list[int]:
    ids = torch.tensor([prompt], device=DEVICE)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=LENGTH,
        min_new_tokens=LENGTH,
        do_sample=False,
        **options,
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def answers_of(cuda_pair: Pair, spec: str, batch: int, params: SamplingParams) -> list[Completion]:
    llm = cuda_pair.engine(spec, max_batch=batch, batch_invariant=False)
    return llm.generate(cuda_pair.prompts, params)


def check_answers(
    cuda_pair: Pair, answers: Sequence[Completion], expected: Sequence[list[int]]
) -> None:
    """Check that answers are as expected up to the first near tie."""
    dtype = cuda_pair.target.dtype
    for prompt, answer, other in zip(cuda_pair.prompts, answers, expected, strict=True):
        assert len(answer.token_ids) == len(other)
        pairs = zip(answer.token_ids, other, strict=True)
        index = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
        if index is not None:
            ids = torch.tensor([prompt + other[:index]], device=DEVICE)
            with torch.inference_mode():
                first, second = cuda_pair.target(ids).logits[0, -1].float().topk(2).values.tolist()
            assert first - second <= NEAR_TIE[dtype], f"token {index} of {prompt[:8]}..."


GREEDY = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("spec", [*GUESSES, "draft_model", "ouroboros", "specdec_pp"])
def test_greedy_answers_equal_generate(cuda_pair: Pair, spec: str, batch: int) -> None:
    check_answers(cuda_pair, answers_of(cuda_pair, spec, batch, GREEDY), cuda_pair.answers)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("spec", SEEDED)
def test_seeded_text_equals_plain_decoding(cuda_pair: Pair, spec: str, batch: int) -> None:
    params = SamplingParams(
        max_new_tokens=LENGTH, ignore_eos=True, temperature=0.9, top_p=0.95, top_k=50, seed=5
    )
    plain = answers_of(cuda_pair, "none", 1, params)
    answers = answers_of(cuda_pair, spec, batch, params)
    assert [one.token_ids for one in answers] == [one.token_ids for one in plain]


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("spec", ["prompt_lookup", "auto", "draft_model"])
def test_penalties_and_log_probabilities(cuda_pair: Pair, spec: str, batch: int) -> None:
    params = SamplingParams(
        max_new_tokens=LENGTH,
        ignore_eos=True,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        logit_bias={7: 1.5},
        logprobs=3,
        prompt_logprobs=1,
    )
    plain = answers_of(cuda_pair, "none", 1, params)
    answers = answers_of(cuda_pair, spec, batch, params)
    assert [one.token_ids for one in answers] == [one.token_ids for one in plain]
    for one, other in zip(answers, plain, strict=True):
        for scores, wanted in zip(one.logprobs or [], other.logprobs or [], strict=True):
            assert scores == pytest.approx(wanted, abs=1e-4)


def test_repetition_penalty_equals_generate(cuda_pair: Pair) -> None:
    params = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True, repetition_penalty=1.3)
    expected = [
        generate_on_cuda(cuda_pair.target, prompt, repetition_penalty=1.3)
        for prompt in cuda_pair.prompts
    ]
    answers = answers_of(cuda_pair, "prompt_lookup", 8, params)
    assert [one.token_ids for one in answers] == expected


@pytest.mark.parametrize("spec", ["none", "lookahead", "auto", "draft_model"])
def test_answers_in_bfloat16_differ_only_at_near_ties(cuda_pair: Pair, spec: str) -> None:
    target, draft = (
        copy.deepcopy(model).to(torch.bfloat16) for model in (cuda_pair.target, cuda_pair.draft)
    )
    expected = [generate_on_cuda(target, prompt) for prompt in cuda_pair.prompts]
    half = Pair(target, draft, cuda_pair.prompts, expected)
    check_answers(half, answers_of(half, spec, 8, GREEDY), expected)


def test_a_second_turn_reuses_the_cached_first_turn(cuda_pair: Pair) -> None:
    llm = LLM(cuda_pair.target, "prompt_lookup", keep_prefixes=2, batch_invariant=False)
    for prompt in cuda_pair.prompts[:2]:
        (first,) = llm.generate([prompt], GREEDY)
        turn = [*prompt, *first.token_ids, 5, 6, 7]
        (second,) = llm.generate([turn], GREEDY)
        assert second.stats.cached_tokens > len(prompt)
        assert second.token_ids == generate_on_cuda(cuda_pair.target, turn)
