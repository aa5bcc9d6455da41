"""Test the cache of fitted draft heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from paceline.draft_head import fitting as module
from paceline.draft_head.find import find_draft_head
from paceline.draft_head.guessing import DraftHead
from paceline.model.cached_lm import CachedLM
from paceline.util import cache
from tests.support.shared import Pair


def weights_of(found: DraftHead | None) -> Tensor:
    assert found is not None
    return found._first


def test_fitted_head_is_cached(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    first = weights_of(find_draft_head(CachedLM(pair.target)))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_fit", lambda model, pairs: pytest.fail("it is there"))
        again = weights_of(find_draft_head(CachedLM(pair.target)))
    assert torch.equal(first, again)
    other = weights_of(find_draft_head(CachedLM(pair.draft)))
    assert other.shape != first.shape or not torch.equal(first, other)


@pytest.mark.parametrize("damage", ["not safetensors", "another shape", "no number"])
def test_damaged_head_is_fitted_again(
    damage: str, pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    first = weights_of(find_draft_head(CachedLM(pair.target)))
    (file,) = tmp_path.glob("*/*/weights.safetensors")
    content = file.read_bytes()
    if damage == "not safetensors":
        file.write_bytes(b"\xff" * len(content))
    elif damage == "another shape":
        rows, columns = first.shape
        file.write_bytes(
            content.replace(f"[{rows},{columns}]".encode(), f"[{columns},{rows}]".encode())
        )
    else:
        tensors = safetensors.torch.load(content)
        tensors["first"][0, 0] = torch.inf
        file.write_bytes(safetensors.torch.save(tensors, {"levels": "1"}))
    assert torch.allclose(
        weights_of(find_draft_head(CachedLM(pair.target))), first, rtol=1e-2, atol=1e-2
    )
