"""Test the SSSD paper: replays against decoding, and a run on tiny models."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams, datastore
from paceline.cli.main import run as run_command
from paceline.core.request import Request
from paceline.drafters import create
from paceline.errors import ConfigError, DatastoreError
from paceline.replay import replay
from paceline.report.documents import DocumentKind, read_document, write_document
from papers import (
    configure,
    draw_paper,
    paper_markdown,
    read_paper_json,
    run_paper,
    write_paper_json,
)
from papers.report import tables as tables_of
from papers.sssd import answers, costs, replays
from papers.sssd.answers import GREEDY
from papers.sssd.costs import measure
from papers.sssd.paper_settings import BATCHES, SIZES, TIMED
from papers.sssd.replays import (
    METHODS,
    PIA,
    REST,
    ReplayOptions,
    Windowed,
    documents,
    replay_all,
    teach,
)
from papers.sssd.result import (
    BOTH,
    REQUEST,
    STORE,
    WINDOW,
    Case,
    CostStudy,
    SssdResult,
    published,
)
from papers.sssd.speed import Speed, best, drafter
from tests.support.models import byte_tokenizer, make
from tests.support.shared import Pair, interrupt, tiny_store

PROMPTS = 4


@pytest.fixture(autouse=True)
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papers.sssd.device.ADDED_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr("papers.sssd.device.GEMM_SIZE", {"cpu": 64})


def _hooks(model: torch.nn.Module) -> list[object]:
    """Return all forward hooks on the modules of a model."""
    return [
        hook
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for hook in hooks.values()
    ]


def test_forwards_are_timed_and_split(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("papers.sssd.costs.COST_CONTEXTS", (16, 40))
    before = _hooks(pair.target)  # transformers leaves hooks that capture hidden states
    study = measure(pair.target, "tiny", 1e-6, progress=False)
    assert (study.rounds, study.complete, study.contexts) == (1, True, [16, 40])
    assert min(study.peak.flops, study.peak.bandwidth) > 0
    assert len(study.steps) == 2 * len(BATCHES) * len(SIZES)
    for step in study.split():
        assert None not in (step.matmuls, step.attention, step.rest)
        assert 0 < sum(part or 0 for part in (step.matmuls, step.attention)) < step.seconds
    assert study.relative(Case(8, 16, 1)) == 1
    assert _hooks(pair.target) == before
    kind = DocumentKind("costs", 1, CostStudy)
    write_document(tmp_path / "costs.json", kind, study)
    assert read_document(tmp_path / "costs.json", kind) == study
    chains = measure(make("bloom"), "no trees", 1e-6, progress=False)
    assert chains.complete


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("nodes", [3, 15])
def test_a_replay_counts_the_same_as_decoding(pair: Pair, temperature: float, nodes: int) -> None:
    """Replays of plain answers take exactly the forwards of drafted decoding."""
    params = SamplingParams(24, temperature, seed=5, ignore_eos=True)
    plain = LLM(pair.target, "none").generate(pair.prompts[:PROMPTS], params)
    traces = [
        (prompt, answer.token_ids) for prompt, answer in zip(pair.prompts, plain, strict=False)
    ]
    spec = f"sssd:datastore={tiny_store(pair.near_copies(), 256)},max_nodes={nodes},budget=false"
    drafted = LLM(pair.target, spec, max_batch=1).generate(pair.prompts[:PROMPTS], params)
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    result = replay(create(spec), traces, nodes)
    assert result.steps == sum(answer.stats.target_forwards for answer in drafted)
    assert result.accepted == sum(answer.stats.accepted_tokens for answer in drafted)


def test_window_hides_the_request(tmp_path: Path) -> None:
    store = tiny_store(((7, 8, 9, 5),), 16)
    text = [1, 2, 3, 4, 7, 8, 1, 2, 3, 4]
    everything = create("sssd", datastore=store)
    request = Request(text, SamplingParams(8))
    everything.start(request)
    assert everything.propose([request], [4])[0].token_ids[0] == 7
    hidden = Windowed(create("sssd", datastore=store), 4)
    hidden.start(request)
    assert len(hidden.propose([request], [4])[0]) == 0
    request = Request([*text, 7, 8], SamplingParams(8))
    assert hidden.propose([request], [4])[0].token_ids == [9, 5]


def test_documents_are_sampled_evenly(tmp_path: Path) -> None:
    texts = [[number, number + 1, number + 2] for number in range(40)]
    datastore.build(tmp_path, texts, 50, workers=1)
    assert documents(str(tmp_path), 1000) == texts
    assert documents(str(tmp_path), 30) == texts[::4]


def test_pia_learns_texts_in_advance() -> None:
    pia = create("pia")
    teach(pia, [4, 5, 6, 7])
    request = Request([1, 4, 5], SamplingParams(8))
    pia.start(request)
    assert pia.propose([request], [4])[0].token_ids == [6, 7]


def test_time_limit_reduces_the_replayed_sizes(pair: Pair) -> None:
    traces = {"a": [(pair.prompts[0], pair.answers[0])], "b": [(pair.prompts[1], pair.answers[1])]}
    options = ReplayOptions(tiny_store(pair.near_copies(), 256), left=1e-6, progress=False)
    study = replay_all(traces, options)
    assert (study.sizes, study.answers, study.complete) == ([1, 16], {"a": 1, "b": 1}, True)
    assert study.methods == [method.name for method in METHODS]
    both = study.result(BOTH, 16)
    parts = [study.result(BOTH, 16, name) for name in "ab"]
    assert both is not None
    assert both.tokens == sum(part.tokens for part in parts if part) == 80
    assert (study.rate(BOTH, 16) or 0) > (study.rate(REQUEST, 16) or 0)
    assert (study.rate(published(STORE), 16) or 0) > (study.rate(published(WINDOW), 16) or 0)
    assert study.rate(BOTH, 1) == 1
    assert study.rate(BOTH, 32) is None


def test_best_size_has_the_largest_product() -> None:
    points = [
        Speed(1, 1.0, 1.0, 1.0, None, 1.0, 1.0),
        Speed(8, 2.0, 1.9, 1.2, None, 1.0, 1.0),
        Speed(64, 3.0, 2.5, 2.0, None, 1, 1),
    ]
    top = best(points, "measured")
    assert top is not None
    assert top.size == 8
    assert top.product("measured") == pytest.approx(2 / 1.2)
    assert best(points, "CPU time") is None
    assert [drafter(size, None) for size in TIMED[:2]] == [
        "sssd:max_nodes=3,answer_cache_tokens=0",
        "sssd:max_nodes=7,answer_cache_tokens=0",
    ]


def run_tiny(pair: Pair, tmp_path: Path, stored: bool = True, **options: Any) -> SssdResult:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"id": f"{i}", "category": "xy"[i % 2], "turns": [f"{i} abcab" * 3]} for i in range(PROMPTS)
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values: dict[str, Any] = {
        "max_new_tokens": 6,
        "limit": 0,
        "every": 1,
        "warmup": 0,
        "threads": 1,
        "max_seconds": 0,
        **options,
    }
    store = tiny_store(pair.near_copies(), 256) if stored else None
    config = configure("sssd", model="tiny", prompts=(str(prompts),), datastore=store, **values)
    result = run_paper(config, target=pair.target, tokenizer=byte_tokenizer(), progress=False)
    assert isinstance(result, SssdResult)
    return result


@pytest.fixture
def fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the rounds and the cached tokens."""
    monkeypatch.setattr("papers.sssd.costs.COST_CONTEXTS", (16, 40))
    monkeypatch.setattr("papers.sssd.costs.COST_ROUNDS", 2)
    monkeypatch.setattr("papers.sssd.costs.SPLIT_ROUNDS", 1)


@pytest.mark.usefixtures("fewer_rounds")
def test_paper_is_measured_and_reported(pair: Pair, tmp_path: Path) -> None:
    result = run_tiny(pair, tmp_path)
    assert result.complete
    assert all(entry.equal == entry.compared for part in result.parts for entry in part.figures)
    assert result.replays is not None
    assert (result.replays.sizes, result.replays.answers) == (list(SIZES), {"x": 2, "y": 2})
    assert result.temperatures is not None
    assert result.temperatures.answers == {GREEDY: 4, "T = 0.5": 16, "T = 1": 16, "T = 2": 16}
    path = tmp_path / "out" / "paper.json"
    write_paper_json(result, path)
    assert read_paper_json(path) == result
    sections = {
        entry["title"].partition(":")[0]: entry
        for entry in json.loads(path.read_text())["sections"]
    }
    budgets = [row[5:] for row in sections["Section 3.2.1"]["rows"]]
    assert budgets[:2] == [
        [pytest.approx(422.14, abs=0.01), pytest.approx(422.14 / 8, abs=0.01)],
        ["435", "54"],
    ]
    assert [row[0] for row in sections["Figure 2"]["rows"]] == list(SIZES), (
        "the one for batches of 8"
    )
    assert {row.drafter for row in result.replays.rows if row.traces == "x"} == {
        method.name for method in METHODS
    }
    assert {row[0]: row[-1] for row in sections["Section 4.2"]["rows"]}["T = 2"] == -0.2
    text = paper_markdown(result)
    for title in (
        "Figure 2: ",
        "Table 1:",
        "Section 3.2.1:",
        "Figure 3:",
        "Figure 4a:",
        "4c:",
        "Section 4.2:",
        "Figure 5:",
    ):
        assert title in text
    assert "| 910B4, Llama-2 7B, the paper's text | - | - | - | - | 435 | 54 |" in text
    assert (
        "| 910B4, Llama-2 7B, the paper's equation | 280 | 0.8 | 350 | 4096 | 422.1 | 52.8 |"
        in text
    )
    assert all(len(row) == len(table.columns) for table in tables_of(result) for row in table.rows)
    draw_paper(result, tmp_path / "paper.png")
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_rounds")
def test_second_vocabulary_is_compared(pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("mistral_common")
    vocabularies = run_tiny(pair, tmp_path, max_seconds=1e-6).vocabularies
    assert vocabularies is not None
    assert list(vocabularies.sizes.values()) == [256, 32000]
    assert all(vocabularies.characters_per_step(BOTH, 16, name) for name in vocabularies.sizes)
    assert all(vocabularies.store_tokens.values())


@pytest.mark.usefixtures("fewer_rounds")
def test_without_a_datastore_the_request_is_searched(pair: Pair, tmp_path: Path) -> None:
    result = run_tiny(pair, tmp_path, stored=False, max_seconds=1e-6)
    assert result.complete
    assert result.replays is not None
    assert result.replays.fusions == [REQUEST, published(REQUEST)]
    assert {BOTH, REST}.isdisjoint(result.replays.methods)
    assert PIA in result.replays.methods
    assert "| all: request |" in paper_markdown(result)
    assert {len(part.figures) for part in result.timed} == {2 + len(TIMED)}
    write_paper_json(result, tmp_path / "paper.json")
    assert read_paper_json(tmp_path / "paper.json") == result
    draw_paper(result, tmp_path / "paper.png")


# Answers one at a time. Greedy and sampled answers and batches follow.
FIRST = PROMPTS * (1 + len(TIMED))


@pytest.mark.usefixtures("fewer_rounds")
@pytest.mark.parametrize(
    ("call", "timed", "there"),
    [
        (3, 1, 0),
        *(
            pytest.param(*late, marks=pytest.mark.slow)
            for late in (
                (FIRST + 1, 1, 0),
                (FIRST + 2, 1, 2),
                (FIRST + 5, 1, 3),
                (FIRST + 15, 2, 4),
            )
        ),
    ],
)
def test_interrupted_paper_keeps_its_results(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, timed: int, there: int
) -> None:
    interrupt(monkeypatch, call)
    check_incomplete(run_tiny(pair, tmp_path, max_new_tokens=2), timed, there, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_rounds")
@pytest.mark.parametrize(
    ("owner", "name", "call", "there"),
    [
        (replays, "replay", 30, 1),
        (costs._Rig, "run", 7, 1),
        (costs._Rig, "run", 100, 2),
        (answers, "documents", 1, 3),
    ],
)
def test_counting_and_timing_can_be_interrupted(
    pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    call: int,
    there: int,
) -> None:
    honest, calls = getattr(owner, name), itertools.count(1)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return honest(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)
    check_incomplete(run_tiny(pair, tmp_path, max_new_tokens=2), 1, there, tmp_path)


def check_incomplete(result: SssdResult, timed: int, there: int, tmp_path: Path) -> None:
    """Check the number of runs and studies of an incomplete result, and its reports."""
    assert not result.complete
    studies = (result.replays, result.costs, result.temperatures, result.vocabularies)
    assert (len(result.timed), sum(study is not None for study in studies)) == (timed, there)
    assert "PARTIAL" in paper_markdown(result)
    write_paper_json(result, tmp_path / "paper.json")
    assert read_paper_json(tmp_path / "paper.json") == result
    draw_paper(result, tmp_path / "paper.png")


def test_datastore_is_an_option_of_this_paper_only(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        ConfigError, match="paper lookahead: --datastore is an option of paper sssd only"
    ):
        configure("lookahead", datastore="folder")
    for command in (["bench"], ["paper", "lookahead"]):
        with pytest.raises(SystemExit, match="2"):
            run_command([*command, "--datastore", "folder"])
        assert "Unknown option: --datastore" in capsys.readouterr().err
    assert configure("sssd", datastore="a").command().endswith("paper sssd demo --datastore a")
    strange = {"target": pair.target, "tokenizer": byte_tokenizer(), "progress": False}
    with pytest.raises(DatastoreError, match="there is no store"):
        run_paper(configure("sssd", model="tiny", datastore=str(tmp_path / "none")), **strange)
    with pytest.raises(ConfigError, match="vocabulary of 3000 tokens; expected at most 256"):
        run_paper(
            configure("sssd", model="tiny", datastore=tiny_store(((1, 2, 3),), 3000)), **strange
        )
