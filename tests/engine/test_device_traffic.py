"""Test that a device gives the CPU's answers and that a step waits for it at most twice."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import paceline
from paceline import LLM, Completion, SamplingParams
from paceline.draft_head.fitting import fitted_weights
from paceline.engine.step_runner import StepRunner
from paceline.model import cached_lm
from paceline.model.cached_lm import CachedLM
from paceline.util import cache
from tests.support.shared import Pair, has_draft, with_head, with_store
from tests.support.simulated_cuda import moved, simulated_cuda
from tests.support.traffic import Event, bytes_down

PAGE = Path(__file__).parents[2] / "docs" / "development" / "device-waits.md"
COUNT = 10
MAX_WAITS = 2
MAX_BYTES_DOWN = 16_000
GUESSES = (
    "none",
    "jacobi",
    "lookahead",
    "pia",
    "prompt_lookup",
    "rest",
    "sssd",
    "token_recycling",
    "auto",
)
LARGE = ("none", "lookahead", "auto")
DIFFERENT = (*LARGE, "draft_model", "auto:use_draft_model=true")
MODELS = ("draft_model", "ouroboros", "specdec_pp", "auto:use_draft_model=true")
# File and function of every wait that the documentation explains.
LISTED = set(re.findall(r"^\| `(\w.*)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
KINDS = ("greedy", "sampled", "penalties", "logprobs")


def with_kinds(specs: Sequence[str], batch: int) -> list[Any]:
    """Combine every spec with all kinds of sampling options.

    By default, `DIFFERENT` runs with all kinds at 8 requests and greedily at other sizes. The
    others sample at 8 requests.
    """

    def is_default(spec: str, kind: str) -> bool:
        if spec in DIFFERENT:
            return batch == 8 or kind == "greedy"
        return batch == 8 and kind == "sampled"

    return [
        pytest.param(spec, batch, kind, marks=() if is_default(spec, kind) else pytest.mark.slow)
        for spec in specs
        for kind in KINDS
    ]


class Step(NamedTuple):
    """Events of one step.

    Attributes:

    events: Waits and copies.

    draft_forwards: Number of forward passes of the draft model.

    launches: Number of operations launched outside graphs.
    """

    events: list[Event]
    draft_forwards: int
    launches: int


def params_of(kind: str, index: int) -> SamplingParams:
    """Return sampling parameters that differ from request to request."""
    options: dict[str, Any] = {
        "max_new_tokens": COUNT - index % 3,
        "ignore_eos": True,
        "seed": index,
    }
    if kind in ("sampled", "logprobs"):
        options |= {
            "temperature": (0.8, 1.0, 0.0, 1.3)[index % 4],
            "top_p": (0.9, 1.0)[index % 2],
            "top_k": (0, 20, 5)[index % 3],
            "min_p": (0.0, 0.02)[index % 2],
        }
    if kind == "penalties":
        options |= {
            "temperature": (0.0, 0.9)[index % 2],
            "repetition_penalty": (1.2, 1.0, 0.9)[index % 3],
            "frequency_penalty": (0.0, 0.3)[index % 2],
            "presence_penalty": 0.2,
            "logit_bias": {5: 1.5, 9: -2.0},
            "bad_words": ((7,), (8, 9)),
            "min_tokens": 3,
        }
    if kind == "logprobs":
        options |= {"logprobs": index % 4}
    return SamplingParams(**options)


def completions(pair: Pair, spec: str, batch: int, kind: str) -> list[Completion]:
    """Return the answers of a batch, without a draft budget."""
    chosen = with_store(with_head(spec, pair.draft), pair.near_copies(), 256)
    draft = pair.draft if has_draft(spec) else None
    llm = LLM(pair.target, chosen, draft_model=draft, max_batch=batch, batch_invariant=False)
    llm.finish_draft_head()
    prompts = [pair.prompts[index % len(pair.prompts)] for index in range(batch)]
    return llm.generate(prompts, [params_of(kind, index) for index in range(batch)])


class CpuAnswers:
    """Computes answers on the CPU, each once."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._known: dict[tuple[str, int, str], list[Completion]] = {}

    def __call__(self, *case: Any) -> list[Completion]:
        """Return the answers of a drafter, a batch size and a kind of options."""
        if case not in self._known:
            self._known[case] = completions(self._pair, *case)
        return self._known[case]


@pytest.fixture(scope="module")
def cpu_answers(pair: Pair) -> CpuAnswers:
    """Return the answers on the CPU."""
    return CpuAnswers(pair)


@pytest.fixture(scope="module")
def device_pair(pair: Pair) -> Pair:
    """Return the pair on the device."""
    target, draft = (moved(copy.deepcopy(model)) for model in (pair.target, pair.draft))
    return Pair(target, draft, pair.prompts, pair.answers)


def assert_equal(found: list[Completion], expected: list[Completion]) -> None:
    """Compare tokens, and log-probabilities up to rounding."""
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        for scored, known in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert scored == pytest.approx(known, abs=1e-4)


def run_on_device(
    monkeypatch: pytest.MonkeyPatch, device_pair: Pair, spec: str, batch: int, kind: str
) -> tuple[list[Completion], list[Step]]:
    """Return the answers on the device and the events of each step."""
    steps: list[Step] = []
    forwards = 0
    run, forward = StepRunner.run, CachedLM.forward_nodes

    def counted_forward(self: CachedLM, *arguments: Any, **options: Any) -> Any:
        nonlocal forwards
        forwards += self.model is device_pair.draft
        return forward(self, *arguments, **options)

    with simulated_cuda() as traffic:

        def logged_run(self: StepRunner) -> Any:
            nonlocal forwards
            traffic.take()
            forwards, before = 0, traffic.launches
            outcomes = run(self)
            steps.append(Step(traffic.take(), forwards, traffic.launches - before))
            return outcomes

        monkeypatch.setattr(StepRunner, "run", logged_run)
        monkeypatch.setattr(CachedLM, "forward_nodes", counted_forward)
        return completions(device_pair, spec, batch, kind), steps


def check_steps(steps: Sequence[Step]) -> None:
    """Check waits and bytes of all steps except the first, which runs the prompts."""
    for events, draft_forwards, _ in steps[1:]:
        waits = [event.caller for event in events if event.waits]
        assert len(waits) <= MAX_WAITS * (1 + draft_forwards), waits
        assert {caller[:2] for caller in waits} <= LISTED, waits
        assert bytes_down(events) <= MAX_BYTES_DOWN * (1 + draft_forwards)
    assert any(event.down for step in steps for event in step.events), "nothing was logged"


@pytest.mark.parametrize(
    ("spec", "batch", "kind"),
    [*with_kinds(GUESSES, 1), *with_kinds(GUESSES, 8), *with_kinds(LARGE, 32)],
)
def test_drafters_without_a_draft_model(
    monkeypatch: pytest.MonkeyPatch,
    device_pair: Pair,
    cpu_answers: CpuAnswers,
    spec: str,
    batch: int,
    kind: str,
) -> None:
    found, steps = run_on_device(monkeypatch, device_pair, spec, batch, kind)
    assert_equal(found, cpu_answers("none", batch, kind))
    check_steps(steps)


@pytest.mark.parametrize(
    ("spec", "limit"),
    [("none", 8), ("token_recycling", 8), ("auto", 24), ("draft_model", 16)],
)
def test_steps_in_graphs_launch_little_else(
    monkeypatch: pytest.MonkeyPatch, device_pair: Pair, spec: str, limit: int
) -> None:
    """Check that graphs also contain the arg-max, the top tokens and the draft head."""
    monkeypatch.setattr(sys.modules[__name__], "COUNT", 40)
    _, steps = run_on_device(monkeypatch, device_pair, spec, 8, "greedy")
    assert min(step.launches for step in steps) <= limit


def test_slots_of_different_lengths(
    monkeypatch: pytest.MonkeyPatch, device_pair: Pair, cpu_answers: CpuAnswers
) -> None:
    """Check them without the kernel that reads them, which large batches also do without."""
    monkeypatch.setattr(cached_lm, "reads_regions", lambda *_: True)
    monkeypatch.setattr(CachedLM, "_use_fixed_shapes", lambda self: None)
    found, steps = run_on_device(monkeypatch, device_pair, "lookahead", 8, "greedy")
    assert_equal(found, cpu_answers("none", 8, "greedy"))
    check_steps(steps)


@pytest.mark.parametrize(
    ("spec", "batch", "kind"), [*with_kinds(MODELS, 1), *with_kinds(MODELS, 8)]
)
def test_draft_models(
    monkeypatch: pytest.MonkeyPatch,
    device_pair: Pair,
    cpu_answers: CpuAnswers,
    spec: str,
    batch: int,
    kind: str,
) -> None:
    """Compare sampled drafts with those of the CPU, because they decide the tokens drawn."""
    found, steps = run_on_device(monkeypatch, device_pair, spec, batch, kind)
    assert_equal(found, cpu_answers(spec, batch, kind))
    check_steps(steps)


def test_draft_head_is_fitted_on_the_device(
    pair: Pair, device_pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = fitted_weights(CachedLM(pair.target))
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    with simulated_cuda():
        fitted = fitted_weights(CachedLM(device_pair.target))
    assert fitted is not None
    assert weights is not None
    torch.testing.assert_close(fitted.first, weights.first, atol=1e-2, rtol=1e-2)


def test_documented_waits_exist() -> None:
    package = Path(paceline.__file__).parent
    assert len(LISTED) == 5
    for file, function in LISTED:
        assert f"def {function}(" in (package / file).read_text()
