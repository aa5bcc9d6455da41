"""Test hidden states of middle layers, as drafts read them, with many architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.layers import decoder_layers, decoder_of
from tests.support import models
from tests.support.tree_models import CHAINS, TREES

PROMPTS = [[5, 9, 17, 23, 40], [7, 8]]
LAYERS = (0, 1)


def of_plain(model: Any, token_ids: list[int]) -> torch.Tensor:
    """Return the states that transformers reports, [tokens, 1 + layers, hidden]."""
    with torch.inference_mode():
        found = decoder_of(model)(
            input_ids=torch.tensor([token_ids]), output_hidden_states=True, use_cache=False
        )
    return torch.stack(
        [found.last_hidden_state[0], *(found.hidden_states[layer][0] for layer in LAYERS)], dim=1
    )


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("name", [*TREES, *CHAINS])
def test_states_equal_those_of_a_plain_forward_pass(name: str, batch_invariant: bool) -> None:
    model = models.make(name)
    try:
        target = CachedLM(model, batch_invariant=batch_invariant)
    except UnsupportedModelError:
        pytest.skip("has no batch-invariant attention")
    requests = [Request(prompt, SamplingParams()) for prompt in PROMPTS]
    trees = (
        [DraftTree([5, 9, 7], [-1, -1, 0]), EMPTY_TREE]
        if target.takes_trees
        else [DraftTree.chain([5, 7]), EMPTY_TREE]
    )
    last = len(trees[0])
    for request in requests:
        target.open(request)
    found = target.forward_with_states(requests, trees, LAYERS, pending=True)
    assert found.states is not None
    assert found.pending is not None
    expected = [of_plain(model, [*PROMPTS[0], 5, 7]), of_plain(model, PROMPTS[1])]
    # it has a layer of its own between the last state and the head
    own = slice(1 if name == "roformer" else 0, None)
    rows = found.states[found.starts[0] :][[0, 1, last]]
    torch.testing.assert_close(rows[:, own], expected[0][-3:, own], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        found.states[found.starts[1], own], expected[1][-1, own], rtol=1e-3, atol=1e-4
    )
    for pending, one, prompt in zip(found.pending, expected, PROMPTS, strict=True):
        torch.testing.assert_close(
            pending[:, own], one[: len(prompt) - 1, own], rtol=1e-3, atol=1e-4
        )


def test_many_short_prompts_in_one_batch_have_logits() -> None:
    """Llama 4 scales queries by an estimate of the cache length, which is negative here."""
    target = CachedLM(models.make("llama4"), batch_invariant=True)
    requests = [Request([5, 9, place], SamplingParams()) for place in range(3, 8)]
    for request in requests:
        target.open(request)
    assert target.forward_nodes(requests, [EMPTY_TREE] * len(requests)).flat.isfinite().all()


def test_a_decoder_that_hides_its_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.make("llama")
    monkeypatch.setattr(model.config, "num_hidden_layers", model.config.num_hidden_layers + 1)
    with pytest.raises(
        UnsupportedModelError, match=r"without a list of its .* layers.*reads_at = 0"
    ):
        decoder_layers(model, LAYERS)
