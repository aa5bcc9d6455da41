"""Test the class that vLLM calls, with a simulated runner.

It must never raise, and must leave nothing behind.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from paceline import datastore
from paceline.errors import ConfigError
from paceline.integrations.vllm import Proposer, building, guarded
from paceline.integrations.vllm.settings import ProposerSettings
from tests.support.faulty_drafter import KINDS
from tests.support.vllm_runner import EOS, Job, Runner, vllm_config

COPIES = [*range(20, 60)]


def config(spec: str = "sssd", **options: Any) -> Any:
    ours: dict[str, Any] = {key: options.pop(key) for key in ("length", "idle") if key in options}
    return vllm_config({"drafter": spec, "length": "full", **ours}, **options)


def repetitive_requests(count: int = 6) -> list[Job]:
    """Return requests whose outputs repeat their prompts."""
    return [
        Job([*COPIES, 3 + index, *COPIES[:4]], [*COPIES[4:], 3 + index, *COPIES, EOS])
        for index in range(count)
    ]


def metric(name: str) -> float:
    return REGISTRY.get_sample_value(f"paceline:{name}", {"model_name": "tiny"}) or 0.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    datastore.build(tmp_path / "store", [[*COPIES, EOS]], 256)
    return tmp_path / "store"


@pytest.mark.parametrize("length", ["auto", "full"])
@pytest.mark.parametrize(
    "spec",
    [
        "sssd",
        "prompt_lookup:max_draft_tokens=8",
        "pia",
        "rest:datastore=STORE",
        "sssd:datastore=STORE",
        "none",
    ],
)
def test_drafts_are_accepted_and_counted(spec: str, length: str, store: Path) -> None:
    proposer = Proposer(config(spec.replace("STORE", str(store)), length=length))
    work = repetitive_requests()
    before = (
        metric("spec_decode_num_draft_tokens_total"),
        metric("spec_decode_num_accepted_tokens_total"),
    )
    Runner(proposer, rows=3).run(work)
    drafted = metric("spec_decode_num_draft_tokens_total") - before[0]
    assert drafted >= sum(job.drafted for job in work)
    assert metric("spec_decode_num_accepted_tokens_total") - before[1] == sum(
        job.accepted for job in work
    )
    assert metric("tracked_requests") == 0
    if spec != "none":
        tokens = sum(len(job.answer) for job in work) / sum(job.steps for job in work)
        assert tokens > 2, "repeated text must take fewer steps"


def test_drafts_stay_within_k_and_the_context() -> None:
    proposer = Proposer(config(most=5, context=80))
    runner = Runner(proposer, rows=1, context=80)
    job = Job([*COPIES, *COPIES[:30]], [*COPIES[30:40]])
    runner.put(job)
    seen = []
    while not job.done:
        runner.step()
        seen.append((len(job.text), len(runner.drafts[0])))
    assert max(size for _, size in seen) == 5
    assert all(size <= max(0, 80 - text - 1) for text, size in seen)


def test_only_rows_with_new_tokens_get_drafts() -> None:
    proposer = Proposer(config())
    text = np.array([[*COPIES, *COPIES[:8]], [*COPIES, *COPIES[:8]]], dtype=np.int32)
    drafts = proposer.propose([[], [COPIES[7]]], np.array([20, 48]), text)
    assert drafts[0] == []
    assert drafts[1][:3] == COPIES[8:11]
    assert all(type(token) is int for token in drafts[1])


@pytest.mark.parametrize("kind", [*KINDS, "any"])
def test_faults_of_the_drafter_end_no_request(kind: str) -> None:
    """All requests finish with valid drafts, and faults are counted."""
    rate = 0.2 if kind == "any" else 0.5
    proposer = Proposer(config(f"tests.support.faulty_drafter:Faulty:kind={kind},rate={rate}"))
    before = metric("drafter_failures_total")
    runner = Runner(proposer, rows=4)
    work = repetitive_requests(12)
    waiting = [*work]
    while waiting or runner.batch:
        while waiting and None in runner.rows:
            runner.put(waiting.pop(0))
        runner.step()
        for draft in runner.drafts:
            assert len(draft) <= 8
            assert all(type(token) is int and 0 <= token < 256 for token in draft)
    assert all(job.done for job in work)
    assert metric("tracked_requests") == 0
    if kind not in ("nan", "fewer"):  # a bad confidence is no fault, nor is a missing tree
        assert metric("drafter_failures_total") > before


def test_a_fault_ends_drafting_for_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.drafters.sssd.drafter import Sssd

    proposer = Proposer(config())
    whole = Sssd.propose

    def poisoned(self: Sssd, seqs: Any, max_nodes: list[int]) -> Any:
        if any(5 in seq.token_ids for seq in seqs):
            raise RuntimeError("the third request")
        return whole(self, seqs, max_nodes)

    monkeypatch.setattr(Sssd, "propose", poisoned)
    work = repetitive_requests(4)
    Runner(proposer, rows=4).run(work)
    assert [job.drafted > 0 for job in work] == [True, True, False, True]


@pytest.mark.parametrize(
    "arguments", [([[1]], 3, "x"), ([[1]], None, None), ([[1, 2]], np.array([1]), np.ones((1, 4)))]
)
def test_bad_arguments_raise_nothing(arguments: tuple[Any, ...]) -> None:
    proposer = Proposer(config())
    assert proposer.propose(*arguments) == [[]]
    work = repetitive_requests(2)
    Runner(proposer, rows=2).run(work)
    assert all(job.drafted for job in work), "drafting must continue afterwards"


def test_an_unreadable_store_is_tried_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_SETTINGS", ProposerSettings(retry_seconds=0.0))
    hidden = store.with_name("hidden")
    shutil.move(store, hidden)
    proposer = Proposer(config(f"sssd:datastore={store}"))
    work = repetitive_requests(2)
    Runner(proposer, rows=2).run(work)
    assert not any(job.drafted for job in work)
    shutil.move(hidden, store)
    work = repetitive_requests(2)
    Runner(proposer, rows=2).run(work)
    assert all(job.drafted for job in work)


def test_a_store_may_be_damaged_while_it_is_used(store: Path) -> None:
    proposer = Proposer(config(f"sssd:datastore={store}"))
    Runner(proposer, rows=2).run(repetitive_requests(2))
    (store / "manifest.json").write_text("{")
    before = metric("drafter_failures_total")
    work = repetitive_requests(2)
    Runner(proposer, rows=2).run(work)
    assert all(job.done for job in work)
    assert metric("drafter_failures_total") > before


def test_finished_outputs_are_added_to_a_new_store(tmp_path: Path) -> None:
    """A second proposer of the store, as after a restart, drafts from the outputs."""
    path = tmp_path / "new"
    rng = random.Random(3)
    answer = [rng.randrange(10, 250) for _ in range(60)]
    first = Proposer(config(f"sssd:datastore={path},update_datastore=true"))
    Runner(first, rows=1).run([Job([7, 8, 9], [*answer, EOS])])
    until = time.monotonic() + 90
    steps = len(answer)
    while (
        steps > 20 and time.monotonic() < until
    ):  # new documents can be searched after a short time
        again = Job([7, 8, 9], [*answer, EOS])
        Runner(first, rows=1).run([again])
        steps = again.steps
    assert steps <= 20
    first._drafting._drafter.drafter._store.flush()  # type: ignore[union-attr]  # without this, after 30 seconds
    assert datastore.info(path).documents > 1
    assert not datastore.verify(path)
    other = Job([7, 8, 9], [*answer, EOS])
    Runner(Proposer(config(f"sssd:datastore={path}")), rows=1).run([other])
    assert other.steps <= 20


def test_requests_without_calls_are_forgotten() -> None:
    proposer = Proposer(config(idle=0.05))
    # These requests end by their length.
    Runner(proposer, rows=3).run([Job([5, 6, 7, index], [8, 9, 10]) for index in range(3)])
    until = time.monotonic() + 90
    while metric("tracked_requests") and time.monotonic() < until:
        time.sleep(0.02)
    assert metric("tracked_requests") == 0


def test_other_ranks_draft_nothing() -> None:
    proposer = Proposer(config("sssd:datastore=/nowhere", rank=1, size=2))
    assert proposer.propose(
        [[1], []], np.array([1, 1]), np.ones((2, 8), np.int32), slot_mappings={}
    ) == [[], []]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"drafter": "lookahed"}, "lookahead"),
        ({"drafter": "token_recycling"}, "does not pass to drafters"),
        ({"drafter": "lookahead"}, "does not pass to drafters"),
        ({"drafter": "draft_model"}, "draft model"),
        ({"drafer": "sssd"}, "drafter"),
        ({"length": "long"}, "auto, full"),
        ({"idle": 0}, "at least"),
    ],
)
def test_bad_options_are_refused_at_the_start(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Proposer(vllm_config(options))


def test_a_store_of_another_vocabulary_is_refused_at_the_start(store: Path) -> None:
    with pytest.raises(ConfigError, match="256"):
        Proposer(config(f"sssd:datastore={store}", vocab=100))


def test_repeated_faults_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    counted = []
    faults = guarded.Faults(lambda: counted.append(1))
    for _ in range(100):
        faults.report("here", ValueError("x"))
    assert len(counted) == 100
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["is_hybrid", "is_attention_free"])
def test_models_with_recurrent_layers_are_refused(kind: str) -> None:
    recurrent = config()
    setattr(recurrent.model_config, kind, True)
    with pytest.raises(
        ConfigError, match=r"recurrent layers.*stale recurrent state.*without\s*speculative_config"
    ):
        Proposer(recurrent)
