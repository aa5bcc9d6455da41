"""Test the roofline: table 1 and the free budget of the SSSD paper, and shapes."""

from __future__ import annotations

import pytest

from papers.sssd.device import shapes_of
from papers.sssd.paper_shapes import ASCEND, LLAMA_2_7B
from papers.sssd.roofline import Matmul, Peak, free_budget
from tests.support.models import make


def test_free_budget_equals_the_papers() -> None:
    """The equation is for h = 4096, 280 TFLOP/s and 0.8 TB/s; the text has 435."""
    budget = free_budget(4096, ASCEND)
    assert budget == pytest.approx(422.14, abs=0.01)
    assert budget is not None
    assert 1 / (2 * (1 / 4096 + 1 / (2 * budget))) == pytest.approx(ASCEND.ratio)
    assert free_budget(256, Peak(1e12, 1e9)) is None, (
        "256 numbers of 2 bytes are never worth 1000 FLOPs a byte"
    )


@pytest.mark.parametrize(("batch", "size", "context"), [(1, 1, 128), (8, 16, 128), (8, 64, 4096)])
def test_table_1_equals_the_papers(batch: int, size: int, context: int) -> None:
    """The formulas are FLOPs per number read or written, as the paper simplifies them."""
    works = {work.name: work for work in LLAMA_2_7B.products(batch, size)}
    hidden, tokens = LLAMA_2_7B.hidden, batch * size
    assert works["q_proj"].flops == 2 * tokens * hidden**2
    assert works["q_proj"].intensity * 2 == pytest.approx(1 / (1 / hidden + 1 / (2 * tokens)))
    attention = LLAMA_2_7B.attention(batch, size, context)
    assert attention.flops == 4 * tokens * (size + context) * hidden
    mask = tokens * (size + context) if size > 1 else 0
    without_mask = attention.flops * 2 / (attention.read + attention.written - mask)
    assert without_mask == pytest.approx(2 * size * (1 + size / context) / (1 + 2 * size / context))


def test_roofline_bends_at_the_free_budget() -> None:
    cost = {size: LLAMA_2_7B.relative(8, size, 512, ASCEND) for size in (1, 16, 40, 60, 120)}
    assert cost[1] == 1
    assert cost[40] < 1.2
    assert cost[120] > 1.8 * cost[60], "beyond it twice the tokens take about twice as long"


def test_shapes_of_models() -> None:
    llama = shapes_of(make("llama"))
    assert (llama.heads, llama.kv_heads, llama.head_size, llama.layers, llama.width) == (
        4,
        2,
        16,
        2,
        4,
    )
    assert Matmul("k_proj", 64, 32, 2) in llama.matmuls
    assert Matmul("lm_head", 64, 97, 1) in llama.matmuls
    assert Matmul("c_attn", 64, 192, 2) in shapes_of(make("gpt2")).matmuls
