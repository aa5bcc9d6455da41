"""Batch invariance on a GPU. Not run so far: there was none."""

from __future__ import annotations

import copy

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.cpu.attention.invariant import attention_by_position as on_cpu
from tests.attention.test_by_position import RAGGED, lay
from tests.support.attention import Columns
from tests.support.shared import Pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 20])
def test_values_are_those_of_the_kernel_for_the_cpu(dtype: torch.dtype, window: int | None) -> None:
    from paceline.attention.triton_kernel import attention_by_position

    columns = Columns(lay(RAGGED), (9, 3, 64, 64), dtype)
    expected = on_cpu(
        columns.query, columns.key, columns.value, columns.mask(window), columns.order
    )
    query, key, value, mask = (
        one.cuda() for one in (columns.query, columns.key, columns.value, columns.mask(window))
    )
    ours = attention_by_position(query, key, value, mask, columns.order).cpu()
    real = ~torch.from_numpy(columns.layout.padding)
    assert torch.allclose(
        ours[real].float(), expected[real].float(), rtol=2 * torch.finfo(dtype).eps, atol=1e-5
    )


@pytest.mark.parametrize("spec", ["prompt_lookup", "lookahead", "draft_model"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_answers_are_those_of_plain_decoding_alone(pair: Pair, spec: str, batch: int) -> None:
    target, draft = (
        copy.deepcopy(model).to("cuda", torch.bfloat16) for model in (pair.target, pair.draft)
    )
    there = Pair(target, draft, pair.prompts, pair.answers)
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    plain = LLM(target, "none", max_batch=1, batch_invariant=True)
    expected = [plain.generate([prompt], params)[0].token_ids for prompt in pair.prompts]
    outs = there.engine(spec, max_batch=batch, batch_invariant=True).generate(pair.prompts, params)
    assert [out.token_ids for out in outs] == expected
