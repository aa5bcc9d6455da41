"""Test engines with fixed shapes: preemption, prefixes, changed weights and options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline import LLM, SamplingParams
from tests.engine.test_kv_cache_manager import gib_for_slots, prompts
from tests.support.models import make

PARAMS = SamplingParams(max_new_tokens=40, ignore_eos=True)
SPECS = ["none", "prompt_lookup", "lookahead"]


@pytest.fixture
def model() -> Any:
    return copy.deepcopy(make("llama", "sdpa"))


def fixed_shape_llm(model: Any, spec: str, **options: Any) -> LLM:
    return LLM(model, spec, batch_invariant=False, fixed_shapes=True, **options)


def answers_alone(model: Any, each: list[list[int]], params: SamplingParams) -> list[list[int]]:
    llm = LLM(model, "none", batch_invariant=False)
    return [llm.generate([prompt], params)[0].token_ids for prompt in each]


@pytest.mark.parametrize("spec", SPECS)
def test_preempted_requests_continue(model: Any, spec: str) -> None:
    each, params = prompts(3), SamplingParams(max_new_tokens=170, ignore_eos=True)
    limit = gib_for_slots(LLM(model, "none"), 2, 184)
    llm = fixed_shape_llm(model, spec, max_batch=3, cache_gib=limit, keep_prefixes=1)
    answers = llm.generate(each, params)
    assert llm.load.preemptions > 0
    assert [answer.token_ids for answer in answers] == answers_alone(model, each, params)


@pytest.mark.parametrize("spec", SPECS)
def test_prefixes_are_reused(model: Any, spec: str) -> None:
    llm = fixed_shape_llm(model, spec, keep_prefixes=2)
    (first,) = prompts(1, 40)
    answer = llm.generate([first], PARAMS)[0]
    turn = first + answer.token_ids + [5, 6, 7]
    again = llm.generate([turn], PARAMS)[0]
    assert again.stats.cached_tokens == len(first + answer.token_ids) - 1
    assert again.token_ids == answers_alone(model, [turn], PARAMS)[0]


class Doubled(nn.Module):
    """Module whose output is doubled, as an adapter would change it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Tensor:
        output: Tensor = self.inner(rows) * 2
        return output


def test_replaced_modules_and_weights_are_followed(model: Any) -> None:
    llm, each = fixed_shape_llm(model, "lookahead", max_batch=3), prompts(3)
    before = [answer.token_ids for answer in llm.generate(each, PARAMS)]
    layer = model.model.layers[1]
    layer.mlp.down_proj = Doubled(layer.mlp.down_proj)
    changed = [answer.token_ids for answer in llm.generate(each, PARAMS)]
    assert changed == answers_alone(model, each, PARAMS)
    assert changed != before
    with torch.no_grad():
        model.lm_head.weight.data = model.lm_head.weight.data.flip(0).contiguous()
    moved = [answer.token_ids for answer in llm.generate(each, PARAMS)]
    assert moved == answers_alone(model, each, PARAMS)
    assert moved != changed


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "seed": 3},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"logprobs": 2},
    ],
)
def test_sampling_options_work_with_fixed_shapes(model: Any, options: Any) -> None:
    params, each = SamplingParams(max_new_tokens=24, ignore_eos=True, **options), prompts(4)
    plain = LLM(model, "none", batch_invariant=False).generate(each, params)
    answers = fixed_shape_llm(model, "prompt_lookup", max_batch=4).generate(each, params)
    assert [one.token_ids for one in answers] == [one.token_ids for one in plain]
    for answer, other in zip(answers, plain, strict=True):
        for scores, expected in zip(answer.logprobs or [], other.logprobs or [], strict=True):
            assert scores == pytest.approx(expected, abs=1e-3)
