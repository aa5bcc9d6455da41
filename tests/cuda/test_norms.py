"""Compare Triton norms with torch's; only the search for modules runs without a GPU."""

from __future__ import annotations

import pytest
import torch

from paceline.backend.norm_modules import find_rms_norms
from paceline.backend.torch_backend import TORCH
from tests.support.models import make


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 96, 576, 4096, 14336])
def test_norm_equals_torch(size: int, dtype: torch.dtype) -> None:
    from paceline.cuda.norms import rms_norm
    from paceline.cuda.settings import NORM_TOLERANCES

    torch.manual_seed(size)
    rows = torch.randn(3, 5, size, device="cuda").to(dtype)
    weight = torch.randn(size, device="cuda").to(dtype)
    expected, tolerance = TORCH.rms_norm(rows, weight, 1e-5), NORM_TOLERANCES[dtype]
    torch.testing.assert_close(rms_norm(rows, weight, 1e-5), expected, rtol=tolerance, atol=1e-6)


def test_only_modules_that_compute_the_same_are_found() -> None:
    model, tolerances = make("llama", "sdpa"), {torch.float32: 1e-5}
    found = find_rms_norms(model, TORCH.rms_norm, lambda weight: True, tolerances)
    assert len(found) == 2 * model.config.num_hidden_layers + 1
    assert set(found.values()) == {model.config.rms_norm_eps}
    assert not find_rms_norms(model, TORCH.rms_norm, lambda weight: False, tolerances)
    wrong = find_rms_norms(model, lambda rows, weight, eps: rows, lambda weight: True, tolerances)
    assert not wrong
