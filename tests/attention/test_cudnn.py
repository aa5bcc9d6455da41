"""Check that forward passes on CUDA disable cuDNN in SDPA and restore torch's setting
afterwards.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch

from paceline.attention.cudnn import without_cudnn
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.cached_lm import CachedLM
from paceline.model.forward_mode import mode_of
from tests.support.foreign import quantised
from tests.support.models import make


def allowed() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


@pytest.fixture(params=[True, False])
def switch(request: pytest.FixtureRequest) -> Any:
    before = allowed()
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(before)


def on_cuda(monkeypatch: pytest.MonkeyPatch, model: Any) -> Any:
    """Make a model report that its parameters are on CUDA."""
    monkeypatch.setattr(type(model), "parameters", lambda self, recurse=True: iter([_There()]))
    return model


class _There:
    device = torch.device("cuda:0")


def test_setting_is_restored(switch: bool) -> None:
    with without_cudnn():
        assert not allowed()
        with without_cudnn():
            assert not allowed()
        assert not allowed()
    assert allowed() is switch
    with pytest.raises(RuntimeError), without_cudnn():
        raise RuntimeError
    assert allowed() is switch


def test_last_thread_restores_the_setting(switch: bool) -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_cudnn():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with without_cudnn():
        thread.start()
        assert inside.wait(60)
    assert not allowed()
    leave.set()
    thread.join()
    assert allowed() is switch


def test_only_forward_passes_on_cuda_disable_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama", "sdpa")
    assert mode_of(model) is torch.inference_mode
    lm, seen = CachedLM(model), []
    hook = model.lm_head.register_forward_hook(
        lambda *_: seen.append((allowed(), torch.is_inference_mode_enabled()))
    )
    request = Request([3, 4, 5], SamplingParams())
    lm.open(request)
    before = allowed()
    lm.feed([request])
    with monkeypatch.context() as patch:
        lm.mode = mode_of(on_cuda(patch, model))
    request.append([6])
    lm.feed([request])
    hook.remove()
    assert seen == [(before, True), (False, True)]
    assert allowed() is before


def test_models_of_foreign_weights_run_as_in_generate() -> None:
    model, seen = quantised("a tensor subclass"), []
    model.lm_head.register_forward_hook(
        lambda *_: seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    )
    lm = CachedLM(model)
    request = Request([3, 4, 5], SamplingParams())
    lm.open(request)
    lm.feed([request])
    request.append([6])
    with torch.inference_mode():  # of the caller
        lm.feed([request])
    assert seen == [(False, False)] * 2


def test_auto_skips_batch_invariance_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("tried")

    model = copy.copy(make("llama", "sdpa"))
    monkeypatch.setattr(type(model), "device", torch.device("cuda:0"))
    monkeypatch.setattr("paceline.invariance.invariance.load_report", fail)
    monkeypatch.setattr("paceline.cpu.product_choice.trial", fail)
    found = resolve_batch_invariance(model, "auto")
    assert (found.on, found.report, found.products) == (False, None, None)
    assert found.reason.startswith("'auto' does not test it on CUDA; --batch-invariant on")
    with pytest.raises(ConfigError, match="tried on cuda:0 and failed"):
        resolve_batch_invariance(model, True)
