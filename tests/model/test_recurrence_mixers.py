"""Check which mixers run our recurrences, and that commits put accepted nodes into states."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.lfm2 import modeling_lfm2

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.model.cached_lm import CachedLM
from paceline.model.layer_kinds import states_of
from paceline.model.mixers.recurrence import recurrence_mixer
from paceline.model.mixers.seam import mixers_of
from tests.support import models
from tests.support.recurrent_models import BRANCHING

FAST = ("lfm2", "qwen3_5", "kimi_linear", "granitemoehybrid", "jamba")
PARENTS, ACCEPTED = [-1, 0, -1, 2, 2, 4], [2, 4, 5]
WIDE = 40  # pending tokens of a prefill chunk: beyond those that a commit reads again


def mixers(name: str) -> list[nn.Module]:
    model = models.make(name)
    return [*mixers_of(model, states_of(model)).values()]


@pytest.mark.parametrize("name", BRANCHING)
def test_all_mixers_of_tree_models_run_our_recurrences(name: str) -> None:
    found = mixers(name)
    assert found
    assert all(recurrence_mixer(mixer) for mixer in found)


def test_functions_that_no_kernel_can_replace_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of LFM3 are not wrapped in transformers 5.23."""
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        monkeypatch.setattr(modeling_lfm2, name, inspect.unwrap(getattr(modeling_lfm2, name)))
    assert recurrence_mixer(mixers("lfm2")[0]) is not None


def test_replaced_forward_methods_and_hooks_keep_their_own() -> None:
    mixer = mixers("lfm2")[0]
    vars(mixer)["forward"] = lambda hidden: hidden
    try:
        assert recurrence_mixer(mixer) is None
    finally:
        del vars(mixer)["forward"]
    child: Any = next(mixer.children())
    child._hf_hook = object()
    try:
        assert recurrence_mixer(mixer) is None
    finally:
        del child._hf_hook
    assert recurrence_mixer(mixer) is not None


def test_unknown_activations_and_recurrences_keep_their_own() -> None:
    mixer: Any = mixers("qwen3_5")[0]
    mixer.activation, known = "relu", mixer.activation
    try:
        assert recurrence_mixer(mixer) is None
    finally:
        mixer.activation = known
    assert recurrence_mixer(mixer) is not None

    class Unknown(nn.Module):
        """Mixer that calls no recurrence that paceline knows."""

        def forward(self, hidden: torch.Tensor, cache: Any = None) -> torch.Tensor:
            """Return the input."""
            return hidden

    assert recurrence_mixer(Unknown()) is None


@pytest.mark.parametrize("length", [5, WIDE])
@pytest.mark.parametrize("name", FAST)
def test_accepted_nodes_enter_the_states_and_are_not_fed_again(name: str, length: int) -> None:
    lm = CachedLM(models.make(name))
    text = [3 + 7 * index % 60 for index in range(length)]
    tree = DraftTree([11, 5, 17, 9, 21, 30], PARENTS)
    request = Request(text, SamplingParams())
    lm.open(request)
    lm.forward([request], [tree])
    lm.commit([ACCEPTED])
    assert request.cached == length + len(ACCEPTED)
    request.token_ids += [*(tree.token_ids[node] for node in ACCEPTED), 8]
    after = lm.forward([request], [tree])[0]
    states = {index: layer.held for index, layer in lm._cache.state_layers.items()}
    lm.commit([[]])
    assert request.cached == len(request.token_ids)

    whole = Request([*request.token_ids], SamplingParams())
    lm.open(whole)
    expected = lm.forward([whole], [tree])[0]
    lm.commit([[]])
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-4)
    for held in states.values():
        for tensor in held.values():
            torch.testing.assert_close(
                tensor[request.slot], tensor[whole.slot], rtol=1e-4, atol=1e-4
            )
