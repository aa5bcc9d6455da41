"""Test the SpecDec++ paper: the oracle, and a run on tiny models."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.bench import BenchConfig, ModelOptions, PromptOptions, RunOptions, run_bench
from paceline.errors import ConfigError
from paceline.report.prompts import load_prompts
from paceline.training.acceptance_head.record import record
from paceline.training.acceptance_head.settings import RecordConfig
from papers import (
    configure,
    draw_paper,
    paper_markdown,
    read_paper_json,
    run_paper,
    write_paper_json,
)
from papers.orders import prompts_in_sets
from papers.report import tables as tables_of
from papers.specdec_pp import paper_settings
from papers.specdec_pp.heads import check_recordings
from papers.specdec_pp.oracle import TargetAnswerCache, oracle
from papers.specdec_pp.result import SpecDecResult
from papers.specdec_pp.rules import ORACLE, families, fixed_length
from tests.support.models import byte_tokenizer
from tests.support.shared import COUNT, Pair, interrupt, random_head


def prompt_file(path: Path, count: int, categories: str = "xy") -> str:
    lines = [
        {
            "id": f"{path.stem}{i}",
            "category": categories[i % len(categories)],
            "turns": [f"{i} abcab" * 3],
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_several_files_are_separate_sets(tmp_path: Path) -> None:
    first, second = prompt_file(tmp_path / "one.jsonl", 3), prompt_file(tmp_path / "two.jsonl", 2)
    assert [prompt.category for prompt in prompts_in_sets(PromptOptions((first,), 0, 1))] == [
        "x",
        "y",
        "x",
    ]
    assert [
        prompt.category for prompt in prompts_in_sets(PromptOptions((first, second), 0, 1))
    ] == [
        "one",
        "two",
        "one",
        "two",
        "one",
    ]
    assert [prompt.id for prompt in prompts_in_sets(PromptOptions((first, second), 1, 1))] == [
        "one0",
        "two0",
    ]
    assert [prompt.category for prompt in prompts_in_sets(PromptOptions((), 1, 2))] == [
        "code",
        "maths",
        "chat",
        "summary",
    ]


def test_oracle_runs_the_target_once_per_disagreement(pair: Pair, tmp_path: Path) -> None:
    """Test lemma 2.1 with the draft model's prediction after each token of the answer."""
    prompts = load_prompts([prompt_file(tmp_path / "prompts.jsonl", 3)])
    tokenizer = byte_tokenizer()
    prompt_ids = [tokenizer(prompt.text)["input_ids"] for prompt in prompts]
    sampling = SamplingParams(max_new_tokens=COUNT, ignore_eos=True)
    config = BenchConfig(
        ModelOptions("tiny", threads=1), ("none", fixed_length(3)), sampling=sampling, warmup=0
    )
    plain, draft = LLM(pair.target, "none"), LLM(pair.draft, "none")
    answers = TargetAnswerCache(plain, config.sampling)
    result = run_bench(
        config,
        target=pair.target,
        draft=pair.draft,
        tokenizer=tokenizer,
        prompts=prompts,
        progress=False,
        options=RunOptions(oracle(answers)),
    )
    assert all(row_figures.equal == row_figures.compared for row_figures in result.figures())
    one_token = dataclasses.replace(config.sampling, max_new_tokens=1)
    rows = [call.rows[0] for call in result.calls if call.method == ORACLE]
    for ids, row in zip(prompt_ids, rows, strict=True):
        answer = answers[tuple(ids)]
        predicted = draft.generate(
            [[*ids, *answer[:position]] for position in range(COUNT)], one_token
        )
        differing = [
            position
            for position in range(COUNT)
            if predicted[position].token_ids != answer[position : position + 1]
        ]
        # its replacement is the last token, so no bonus token follows
        ends_with_one = differing[-1:] == [COUNT - 1]
        assert row.counts is not None
        assert row.counts.drafted_tokens == row.counts.accepted_tokens
        assert row.counts.target_forwards == len(differing) + (not ends_with_one)
    best, counted = (
        next(row_figures for row_figures in result.figures() if row_figures.method == name)
        for name in (fixed_length(3), ORACLE)
    )
    assert counted.discard_rate == 0
    assert best.discard_rate is not None
    assert best.discard_rate > 0
    assert (counted.verification_rate or 1) < (best.verification_rate or 0)


def measure(pair: Pair, tmp_path: Path, **options: Any) -> SpecDecResult:
    files = (prompt_file(tmp_path / "one.jsonl", 3), prompt_file(tmp_path / "two.jsonl", 3))
    values: dict[str, Any] = {
        "max_new_tokens": 4,
        "limit": 1,
        "every": 1,
        "warmup": 0,
        "threads": 1,
        "head": (random_head(pair.draft),),
        **options,
    }
    config = configure("specdec_pp", model="tiny", draft_model="noisy", prompts=files, **values)
    result = run_paper(
        config, target=pair.target, draft=pair.draft, tokenizer=byte_tokenizer(), progress=False
    )
    assert isinstance(result, SpecDecResult)
    return result


def test_paper_is_measured_and_reported(pair: Pair, tmp_path: Path) -> None:
    result = measure(pair, tmp_path)
    assert result.complete
    head = result.config.head
    methods = [method for rules in families(head).values() for method in rules.values()]
    assert {row_figures.method for row_figures in result.counts.part.figures} == {
        "transformers",
        "none",
        ORACLE,
        *methods,
    }
    min_rate = min(point.verification_rate for point in result.counts.points(methods))
    assert result.counts.points([ORACLE])[0].verification_rate <= min_rate
    assert list(result.counts.sets) == ["one", "two"]
    assert all(
        row_figures.equal == row_figures.compared
        for part in result.parts
        for row_figures in part.figures
    )
    assert len(result.counts.points(methods, "two")) == len(methods)
    path = tmp_path / "out" / "paper.json"
    write_paper_json(result, path)
    assert read_paper_json(path) == result
    section_2_1, table_2, figure_4, _, _, table_1, _ = json.loads(path.read_text())["sections"]
    assert figure_4["columns"][1:4] == ["all", "one", "two"]
    assert any(row[1][2] == "*" for row in figure_4["rows"] if row[0].startswith("h = ")), (
        "on the front"
    )
    assert [row[0] for row in table_1["rows"]][:3] == ["one", "two", "all"]
    assert section_2_1["rows"][-1][section_2_1["columns"].index("N_disc/N")] == 0
    assert (
        [row[0] for row in table_2["rows"]]
        == [row_figures.setting for row_figures in result.times]
        == list(paper_settings.TABLE_2)
    )
    text = paper_markdown(result)
    for title in (
        "Section 2.1:",
        "Table 2, figure 3:",
        "Figure 4: Each cell shows N_disc/N",
        "Figure 4: The head",
        "Table 1, by equation 2.3:",
        "Table 1, measured:",
        "Appendix C.3:",
    ):
        assert title in text
    assert all(len(row) == len(table.columns) for table in tables_of(result) for row in table.rows)
    draw_paper(result, tmp_path / "paper.png")
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_time_limit_reduces_the_prompts(pair: Pair, tmp_path: Path) -> None:
    result = measure(pair, tmp_path, max_new_tokens=2, max_seconds=1e-6)
    assert result.complete
    assert result.timed is not None
    assert {row.answers for row in (*result.counts.part.figures, *result.timed.part.figures)} == {1}


# answers for figure 4, with two of the oracle
COUNTED = 2 * (3 + sum(map(len, families([]).values())))


@pytest.mark.slow
@pytest.mark.parametrize(("call", "timed", "alone"), [(3, None, None), (COUNTED + 3, False, None)])
def test_interrupted_paper_keeps_its_results(
    pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    timed: bool | None,
    alone: bool | None,
) -> None:
    interrupt(monkeypatch, call)
    result = measure(pair, tmp_path, max_new_tokens=2)
    assert not result.complete
    assert (result.timed and result.timed.part.complete, result.alone) == (timed, alone)
    assert "PARTIAL" in paper_markdown(result)
    write_paper_json(result, tmp_path / "paper.json")
    assert read_paper_json(tmp_path / "paper.json") == result
    draw_paper(result, tmp_path / "paper.png")


def test_recordings_train_heads_for_comparison(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also that a second given head has a row in figure 4."""
    recorded = RecordConfig(
        tmp_path / "recorded",
        selection=PromptOptions((prompt_file(tmp_path / "text.jsonl", 12),)),
        sampling=SamplingParams(max_new_tokens=8),
    )
    record(recorded, pair.target, pair.draft, byte_tokenizer())
    with pytest.raises(
        ConfigError, match=r"got a recording of draft model .*; expected .* Record this pair"
    ):
        check_recordings([str(recorded.out)], pair.target)
    second = tmp_path / "second"
    shutil.copytree(random_head(pair.draft), second)
    monkeypatch.setattr("papers.specdec_pp.heads.DEPTHS", (1, 0))
    heads = (random_head(pair.draft), str(second))
    result = measure(
        pair, tmp_path, max_new_tokens=2, head=heads, recording=(str(recorded.out),), max_seconds=0
    )
    assert result.complete
    assert [row.label for row in result.heads] == [f"head {folder}" for folder in heads]
    assert [row.depth for row in result.grid_heads] == [1] * 4 + [0] * 4
    assert [row.reject_weight for row in result.grid_heads] == [6, 1, 3, 12] * 2
    assert all(row.calibration_error is not None for row in result.grid_heads)
    assert result.grid is not None
    assert all(
        row_figures.equal == row_figures.compared for row_figures in result.grid.part.figures
    )
    write_paper_json(result, tmp_path / "paper.json")
    assert read_paper_json(tmp_path / "paper.json") == result
    rows = {
        row[0]: row
        for table in tables_of(result)
        for row in table.texts
        if table.title.startswith("Appendix")
    }
    assert rows["w_rej 6, D 1"][1:3] == ["1", "6"]
    assert "-" not in rows["w_rej 6, D 1"][5:]
