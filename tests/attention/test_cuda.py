"""Test the Triton kernel and batch invariance on a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.attention import AttentionMetadata
from paceline.cpu.attention.invariant import attention_by_position as on_cpu
from paceline.invariance.row_classes import bits
from tests.attention.test_by_position import RAGGED, lay
from tests.support.attention import Columns
from tests.support.shared import Pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DIMS = [64, 128, 256]
LONG = [(8150, 1, 60), (300, 3, 20)]


def attend(columns: Columns, window: int | None = None) -> Tensor:
    """Run batch-invariant attention on columns that are on the GPU."""
    from paceline.attention.triton_kernel import attention_by_position

    mask = columns.mask(window).cuda()
    return attention_by_position(columns.query, columns.key, columns.value, mask, columns.order)


def moved(columns: Columns) -> Columns:
    there = copy.copy(columns)
    there.query, there.key, there.value = (
        one.cuda() for one in (columns.query, columns.key, columns.value)
    )
    return there


def differing(columns: Columns, together: Tensor, picked: list[tuple[int, int]]) -> int:
    """Return how many of the given columns (row, column) have other bits than alone."""
    from paceline.attention.triton_kernel import attention_by_position

    count = 0
    for row, column in picked:
        query, key, value = columns.alone(row, column, None)
        order = AttentionMetadata.in_order(1, key.shape[2])
        alone = attention_by_position(query, key, value, None, order)
        assert torch.isfinite(alone).all()
        count += not torch.equal(bits(alone[0, 0]), bits(together[row, column]))
    return count


def check_values(columns: Columns, window: int | None) -> None:
    expected = on_cpu(
        columns.query, columns.key, columns.value, columns.mask(window), columns.order
    )
    ours = attend(moved(columns), window).cpu()
    real = ~torch.from_numpy(columns.layout.padding)
    dtype = columns.query.dtype
    torch.testing.assert_close(
        ours[real].float(),
        expected[real].float(),
        rtol=2 * torch.finfo(dtype).eps,
        atol=1e-4 if dtype == torch.float32 else 1e-3,
    )


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 20])
def test_values_equal_those_of_the_cpu_kernel(
    dtype: torch.dtype, window: int | None, dim: int
) -> None:
    check_values(Columns(lay(RAGGED), (9, 3, dim, dim), dtype), window)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_after_long_texts(dtype: torch.dtype) -> None:
    check_values(Columns(lay(LONG), (8, 2, 128, 128), dtype), None)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(3, 3), (8, 2), (18, 1)])
def test_columns_of_a_ragged_batch_have_the_bits_of_single_columns(
    dtype: torch.dtype, dim: int, heads: tuple[int, int]
) -> None:
    """Several texts have trees, and some share the split before the nodes."""
    rows = lay([(500, 1, 40), (3, 2, 4), (254, 1, 12)])
    columns = moved(Columns(rows, (*heads, dim, dim), dtype))
    last = columns.layout.token_ids.shape[1] - 1
    picked = [(0, 0), *((0, column) for column in range(1, last + 1, 3)), (1, 0), (1, 5)]
    assert differing(columns, attend(columns), [*picked, (2, 0), (2, 6), (2, 12)]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_after_long_texts_have_the_bits_of_single_columns(dtype: torch.dtype) -> None:
    columns = moved(Columns(lay(LONG), (8, 2, 128, 128), dtype))
    picked = [(0, column) for column in (0, 1, 7, 30, 60)] + [(1, 0), (1, 2), (1, 20)]
    assert differing(columns, attend(columns), picked) == 0


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_prompt_chunks_have_the_bits_of_the_whole_prompt(dtype: torch.dtype, dim: int) -> None:
    from paceline.attention.triton_kernel import attention_by_position

    noise = torch.Generator("cuda").manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, 700, dim, generator=noise, dtype=dtype, device="cuda")
        for heads in (4, 2, 2)
    )
    whole = attention_by_position(query, key, value, None, AttentionMetadata.in_order(1, 700))
    place = torch.arange(700, device="cuda")
    causal = (place <= place[:, None])[None, None]
    for begin, end in ((0, 33), (33, 34), (34, 513), (513, 700)):
        part = attention_by_position(
            query[:, :, begin:end],
            key[:, :, :end],
            value[:, :, :end],
            causal[:, :, begin:end, :end],
            AttentionMetadata.in_order(1, end),
        )
        assert torch.equal(bits(part), bits(whole[:, begin:end]))


@pytest.mark.parametrize("spec", ["prompt_lookup", "lookahead", "draft_model"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_outputs_equal_plain_decoding_of_single_prompts(pair: Pair, spec: str, batch: int) -> None:
    target, draft = (
        copy.deepcopy(model).to("cuda", torch.bfloat16) for model in (pair.target, pair.draft)
    )
    there = Pair(target, draft, pair.prompts, pair.answers)
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    plain = LLM(target, "none", max_batch=1, batch_invariant=True)
    expected = [plain.generate([prompt], params)[0].token_ids for prompt in pair.prompts]
    outs = there.engine(spec, max_batch=batch, batch_invariant=True).generate(pair.prompts, params)
    assert [out.token_ids for out in outs] == expected
