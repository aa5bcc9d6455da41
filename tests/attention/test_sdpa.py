"""Test our attention function: same sums as transformers', used only in masked forward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from paceline import LLM, DraftTree, SamplingParams
from paceline.attention import AttentionState, takes_tree_attention
from paceline.attention.forward import STATE
from paceline.core.request import Request
from paceline.model.cached_lm import CachedLM
from tests.support.models import make

NAME = "paceline_sdpa"


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("columns", "cached", "causal"), [(1, 5, 0), (7, 5, 0), (7, 0, 4), (7, 0, 7)]
)
def test_equal_to_transformers(groups: int, columns: int, cached: int, causal: int) -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, columns, 4, 8, generator=generator).transpose(1, 2)
    key, value = (
        torch.randn(2, 4 // groups, cached + columns, 8, generator=generator) for _ in range(2)
    )
    mask = torch.rand(2, 1, columns, cached + columns, generator=generator) < 0.5
    mask[..., 0] = True
    if causal:
        mask[:, :, :causal] = torch.ones(columns, columns).tril().bool()[:causal]
    module = nn.Module()
    setattr(module, "num_key_value_groups", groups)  # noqa: B010 (mypy wants modules there)
    attend = AttentionInterface()[NAME]
    vars(module)[STATE] = AttentionState(causal)
    ours, weights = attend(module, query, key, value, mask, scaling=0.3)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert weights is None
    assert ours.shape == (2, columns, 4, 8)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_layers_of_a_pass_share_masks() -> None:
    """Bits equal those without shared masks, even if the caller frees a layer's mask."""
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(1, heads, 6, 8, generator=generator) for heads in (4, 2, 2))
    attend = AttentionInterface()[NAME]
    alone, sharing = nn.Module(), nn.Module()
    vars(sharing)[STATE] = AttentionState(grouped={})
    grouped = vars(sharing)[STATE].grouped
    for layer in range(4):
        mask = torch.rand(1, 1, 6, 6, generator=generator) < 0.5
        mask[..., 0] = True
        expected, _ = attend(alone, query, key, value, mask, scaling=0.3)
        repeated = mask.repeat(1, 1, 2, 1)
        by_torch = nn.functional.scaled_dot_product_attention(
            query.reshape(1, 2, 12, 8), key, value, attn_mask=repeated, scale=0.3
        )
        assert torch.equal(expected.transpose(1, 2), by_torch.reshape(1, 4, 6, 8))
        for _ in range(2):
            shared, _ = attend(sharing, query, key, value, mask, scaling=0.3)
            assert torch.equal(shared, expected)
        assert len(grouped) == layer + 1
        del mask


def test_used_in_masked_forwards_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama", "sdpa")
    attend, widths = AttentionInterface()[NAME], []

    def watch(module: nn.Module, query: torch.Tensor, *args: Any, **options: Any) -> Any:
        widths.append(query.shape[2])
        return attend(module, query, *args, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, watch)
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    prompt = [5, 6, 7, 8, 9] * 4
    out = LLM(model, "none", batch_invariant=False).generate([prompt], params)[0]
    layers = model.config.num_hidden_layers
    assert widths == [20] * layers  # the prompt; then single tokens behind it, which need no mask
    widths.clear()
    drafted = LLM(model, drafter="lookahead:budget=false", batch_invariant=False).generate(
        [prompt], params
    )[0]
    assert drafted.token_ids == out.token_ids
    assert widths == [fed for fed in drafted.stats.query_tokens if fed > 1 for _ in range(layers)]
    widths.clear()
    model.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False)
    assert not widths


def test_the_implementation_is_chosen_in_the_view() -> None:
    model = make("llama", "sdpa")
    assert takes_tree_attention(model)
    assert not takes_tree_attention(make("llama", "eager"))
    lm = CachedLM(model)
    request, tree = Request([5, 6, 7], SamplingParams()), DraftTree([8, 9], [-1, -1])
    lm.open(request)
    for _ in range(2):
        lm.forward([request], [tree])
        assert lm._runner.view.config._attn_implementation == NAME
        assert model.config._attn_implementation == "sdpa"
        lm.commit([[]])
        request.token_ids.append(8)
        lm.feed([request])  # a single token behind a text needs no mask
        assert lm._runner.view.config._attn_implementation == "sdpa"
        request.token_ids.append(9)
