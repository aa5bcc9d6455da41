"""Check that products with packed weights have the bits of unpacked weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("gguf")

from paceline.backend.packed_weight import PackedWeight
from paceline.backend.torch_backend import TORCH
from paceline.cpu.backend import CPU
from paceline.cpu.linear import dispatch
from paceline.cpu.linear.kernel import multiply
from paceline.cpu.packed import product
from tests.support.packed import FORMATS, packed_weight

COUNTS = (1, 2, 3, 4, 7, 13, 40)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("fused", [False, True])
def test_products_have_the_bits_of_the_unpacked_weight(
    name: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test the fastest kernel of this processor and the kernel for all processors."""
    if fused:
        for module in (dispatch, product):
            monkeypatch.setattr(module, "kernel_of", lambda *_: multiply)
    check_packed_product(name)


def check_packed_product(name: str) -> None:
    """Compare products with a packed weight and with its values, in two orders."""
    random = torch.Generator().manual_seed(1)
    order = torch.randperm(80, generator=random)
    for given in (None, order):
        weight, numbers = packed_weight(name, 80, 768, given)
        bias = torch.randn(80, generator=random).bfloat16()
        numbers = numbers.contiguous()
        for count in COUNTS:
            rows = torch.randn(count, 768, generator=random).bfloat16()
            for added in (None, bias):
                expected = CPU.linear(rows, numbers, added)
                assert torch.equal(CPU.linear(rows, weight, added), expected)


@pytest.mark.parametrize("outer", [8, 24, 72])
def test_any_multiple_of_eight_outputs(outer: int) -> None:
    weight, numbers = packed_weight("Q4_1", outer, 64)
    for count in (1, 3, 5):
        rows = torch.randn(count, 64).bfloat16()
        assert torch.equal(CPU.linear(rows, weight, None), CPU.linear(rows, numbers, None))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_unpacked_exactly(name: str) -> None:
    weight, numbers = packed_weight(name, 24, 256, torch.arange(23, -1, -1))
    ids = torch.tensor([[5, 0], [23, 5]])
    assert torch.equal(weight.unpacked(), numbers)
    assert torch.equal(TORCH.unpack(weight, ids[0]), numbers[ids[0]])
    assert torch.equal(functional.embedding(ids, weight), numbers[ids])


def test_other_operations_get_the_numbers() -> None:
    weight, numbers = packed_weight("Q4_1", 16, 64)
    rows = torch.randn(3, 64).bfloat16()
    with torch.inference_mode():
        assert torch.equal(functional.linear(rows, weight), functional.linear(rows, numbers))
    assert torch.equal(weight[4:12][1], numbers[5])
    assert torch.equal(weight[-2:] + 0, numbers[-2:])
    assert torch.equal(weight[::3] + 0, numbers[::3])
    assert torch.equal(weight[torch.tensor([3, -1])], numbers[[3, -1]])
    assert torch.equal(weight[numbers[:, 0] > 0], numbers[numbers[:, 0] > 0])
    assert torch.equal(weight.float(), numbers.float())
    parameter: Tensor = nn.Parameter(weight, requires_grad=False)
    assert isinstance(parameter, PackedWeight)
    assert isinstance(copy.deepcopy(parameter), PackedWeight)
    assert isinstance(copy.deepcopy(parameter), nn.Parameter)


def test_a_packed_weight_never_changes() -> None:
    weight, _ = packed_weight("Q8_0", 8, 32)
    for change in (Tensor.zero_, lambda each: each.add_(1), lambda each: each.copy_(each)):
        with pytest.raises(RuntimeError, match="a packed weight cannot be changed; unpack"):
            change(weight)
    with pytest.raises(IndexError, match=r"got \[8\]; expected 0 to 7"):
        weight.unpacked(torch.tensor([8]))
