"""Replay the work of a device, so that a CPU can measure the host's work alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.backend.resolve import cpu_backend, torch_backend
from paceline.draft_head.guessing import DraftHead
from paceline.drafters.auto import draft_model_gate
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.captured_states import CapturedStates
from paceline.model.fixed_shapes.output import BucketOutput
from paceline.model.fixed_shapes.runner import FixedShapeRunner
from paceline.util.device_timer import DeviceTimer

# Seconds per forward pass that the draft budget sees; measured times would change its decisions.
FORWARD_S = 1e-3


class ReplayedDevice:
    """Records the results of device work, and then returns them without doing the work.

    Forward passes in fixed shapes, draft heads, top tokens, and moves in the KV cache count as
    device work. During the replay, logits and hidden states are tensors on torch's `meta` device:
    operations on them have shapes but no values. The host thus issues the same operations as on a
    GPU, and its data stays in the processor's caches. The gate of the draft model reads the
    recorded times, so that it decides as in the recording.

    Attributes:
        replays: Whether the results come from the recording.
    """

    def __init__(self) -> None:
        self.replays = False
        self._results: list[Any] = []
        self._next = 0
        self._nested = False  # inside a call whose result is recorded
        self._originals: list[tuple[Any, str, Any]] = []
        self._replace_methods()

    def close(self) -> None:
        """Restore all methods."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def rewind(self) -> None:
        """Replay the recording from its start."""
        self.replays, self._next = True, 0

    def check_end(self) -> None:
        """Check that the replay has used every recorded result.

        Raises:
            RuntimeError: Results are left over.
        """
        if self._next != len(self._results):
            left = len(self._results) - self._next
            raise RuntimeError(f"The replay left {left} results; expected none.")

    def _replace_methods(self) -> None:
        for backend in (cpu_backend(), torch_backend()):
            for name in ("argmax", "topk", "entropies"):
                self._replace(backend, name, self._replayed(getattr(backend, name), _copied))
        make_mover = cpu_backend().row_mover
        self._replace(cpu_backend(), "row_mover", lambda stores: self._omitted(make_mover(stores)))
        for name in ("swap", "copy"):
            self._replace(SlotCache, name, self._omitted(getattr(SlotCache, name)))
        run = FixedShapeRunner._run
        self._replace(FixedShapeRunner, "_run", self._replayed(run, _without_values))
        predict = DraftHead._predict
        self._replace(DraftHead, "_predict", self._replayed(predict, lambda pending: pending))
        self._replace(DeviceTimer, "__exit__", _add_fixed_time)
        use_fixed_shapes = CachedLM._use_fixed_shapes

        def use(model: Any) -> None:  # for target and draft models, as on a GPU
            model._fixed_shapes = True
            use_fixed_shapes(model)

        self._replace(CachedLM, "_use_fixed_shapes", use)
        clock = self._replayed(time.perf_counter, lambda now: now)
        self._replace(draft_model_gate, "perf_counter", clock)

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)

    def _replayed(
        self, function: Callable[..., Any], recorded: Callable[[Any], Any]
    ) -> Callable[..., Any]:
        """Return a function that records its results, or replays them.

        Args:
            function: Function that does device work.
            recorded: Function that turns a result into the form in which it is replayed.
        """

        def run(*arguments: Any) -> Any:
            if self.replays:
                self._next += 1
                return self._results[self._next - 1]
            if self._nested:
                return function(*arguments)
            self._nested = True
            try:
                result = function(*arguments)
            finally:
                self._nested = False
            self._results.append(recorded(result))
            return result

        return run

    def _omitted(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return a function that does nothing during the replay."""

        def run(*arguments: Any) -> None:
            if not self.replays:
                function(*arguments)

        return run


def _copied(result: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """Return copies of tensors that later forward passes may overwrite."""
    if isinstance(result, Tensor):
        return result.clone()
    return tuple(tensor.clone() for tensor in result)


def _without_values(output: BucketOutput) -> BucketOutput:
    """Return a forward pass's output with `meta` tensors in place of logits and states."""
    states = output.states
    if states is not None:
        below = [[_meta(tensor) for tensor in calls] for calls in states.below]
        head, last = ([_meta(each) for each in part] for part in (states.head, states.last))
        states = CapturedStates(head, below, last)
    top = None if output.top is None else (output.top[0].clone(), output.top[1].clone())
    return BucketOutput(_meta(output.logits), states, top)


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def _add_fixed_time(timer: Any, *_: Any) -> None:
    timer._seconds += FORWARD_S
