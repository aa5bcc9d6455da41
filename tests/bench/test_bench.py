"""Test bench runs: comparisons, statistics and reports."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from paceline import LLM, SamplingParams, demo
from paceline.bench import (
    BenchConfig,
    BenchResult,
    ModelOptions,
    PromptOptions,
    load_prompts,
    markdown,
    print_table,
    read_json,
    run_bench,
    write_json,
    write_png,
)
from paceline.errors import CapacityError, ConfigError
from paceline.util.options import changed
from papers.part import BenchPart
from tests.support.models import byte_tokenizer
from tests.support.shared import Pair, interrupt


def write_prompts(path: Path, count: int = 4) -> str:
    """Write a prompt file with two categories."""
    kinds = ("maths", "chat")
    lines = [
        json.dumps(
            {
                "id": f"{path.stem}-{i}",
                "category": kinds[i % 2],
                "turns": [f"{i} abcabcab" * (i + 1), "more"],
            }
        )
        for i in range(count)
    ]
    path.write_text("\n".join(lines) + "\n\n")
    return str(path)


BASELINES = ("transformers", "transformers:prompt_lookup=4", "transformers:assistant")
DRAFTERS = ("none", "prompt_lookup", "draft_model:max_draft_tokens=3")
Bench = Callable[..., BenchResult]


@pytest.fixture
def bench(tmp_path: Path, pair: Pair) -> Bench:
    prompts = write_prompts(tmp_path / "prompts.jsonl")

    def run(**options: Any) -> BenchResult:
        values: dict[str, Any] = {
            "drafters": DRAFTERS,
            "prompts": (prompts,),
            "max_new_tokens": 20,
            "limit": 2,
        }
        config = changed(BenchConfig(), model="tiny", draft_model="noisy", **{**values, **options})
        return run_bench(
            config, target=pair.target, draft=pair.draft, tokenizer=byte_tokenizer(), progress=False
        )

    return run


def test_a_run_compares_all_methods(bench: Bench, pair: Pair, tmp_path: Path) -> None:
    defaults, threads = pair.target.generation_config, torch.get_num_threads()
    result = bench(baselines=BASELINES, repeats=2, threads=1)
    assert pair.target.generation_config is defaults
    assert torch.get_num_threads() == threads
    assert result.complete
    assert (result.baseline, result.reference) == ("transformers", "transformers")
    assert result.divergences == ()
    figures = {row.method: row for row in result.figures()}
    assert list(figures) == [*BASELINES, *DRAFTERS]
    assert [row.compared for row in figures.values()] == [0, 4, 4, 4, 4, 4]
    assert all(
        row.equal == row.compared and row.new_tokens == figures["none"].new_tokens
        for row in figures.values()
    )
    assert figures["transformers"].speedup == 1.0
    assert figures["none"].tokens_per_forward == figures["none"].fed_per_step == 1.0
    assert figures["none"].accepted_per_draft is None
    drafted = figures["draft_model:max_draft_tokens=3"]
    assert (drafted.tokens_per_forward or 0) > 1.2
    shares = [drafted.target_share, drafted.draft_share, drafted.overhead_share]
    assert sum(share or 0 for share in shares) == pytest.approx(1)
    assert [call.method for call in result.calls[:7]] == [*BASELINES, *DRAFTERS, BASELINES[1]], (
        "the order rotates"
    )
    assert result.categories == ["maths", "chat"]
    assert result.figures("chat")[3].answers == 2
    check_reports(result, tmp_path)


@pytest.mark.parametrize("word", ["on", "off"])
def test_reports_show_batch_invariance(bench: Bench, tmp_path: Path, word: Any) -> None:
    result = bench(
        drafters=("none", "prompt_lookup"), max_new_tokens=4, limit=1, batch_invariant=word
    )
    assert [row.batch_invariant for row in result.figures()] == [None, word == "on", word == "on"]
    reason = result.guarantees["prompt_lookup"].reason
    assert reason
    shown = markdown(result)
    assert "same bits" in shown
    assert [
        line.split("|")[-2].strip() for line in shown.splitlines() if line.startswith("| `")
    ] == [
        "-",
        *["yes" if word == "on" else "no"] * 2,
    ]
    assert f"Batch invariance is {word}: {reason}." in shown
    write_json(result, tmp_path / "result.json")
    assert read_json(tmp_path / "result.json").guarantees == result.guarantees


def test_continuous_batching_of_transformers_is_compared(bench: Bench) -> None:
    result = bench(
        baselines=("transformers", "transformers:generate_batch"), drafters=("none",), batch=2
    )
    assert not result.skipped
    assert [(row.compared, row.equal) for row in result.figures()] == [(0, 0), (2, 2), (2, 2)]


def check_reports(result: BenchResult, folder: Path) -> None:
    path = folder / "out" / "bench.json"
    write_json(result, path)
    assert [file.name for file in path.parent.iterdir()] == ["bench.json"], (
        "no temporary file is left"
    )
    assert read_json(path) == result
    document = json.loads(path.read_text())
    assert document["labels"] == {
        "target": result.target,
        "draft": result.draft,
        "cost_scaled": False,
    }
    assert document["environment"]["versions"].keys() >= {
        "python",
        "torch",
        "transformers",
        "paceline",
    }
    assert document["summary"]["all"][0]["tokens_per_second"] > 0
    assert document["calls"][0]["rows"][0]["prompt"] == "prompts-0"
    text = markdown(result)
    assert f"| `{DRAFTERS[2]}` |" in text
    assert result.config.command() in text
    for width in (80, 160):
        console = Console(file=io.StringIO(), width=width)
        print_table(result, console)
        assert "draft_model:max_draft_tokens=3" in console.file.getvalue()  # type: ignore[attr-defined]
    write_png(result, folder / "out" / "bench.png")
    assert (folder / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_reports_show_cost_scaling(tmp_path: Path) -> None:
    config = BenchConfig(
        ModelOptions(dtype="float32"),
        ("none", "draft_model:max_draft_tokens=3"),
        selection=PromptOptions(limit=1),
        sampling=SamplingParams(max_new_tokens=8),
        cost_scale="512x7",
        draft_cost_scale="256x2",
    )
    result = run_bench(config, progress=False)
    assert "cost-scaled 512x7 (" in result.target
    assert "cost-scaled 256x2 (" in (result.draft or "")
    assert "cost-scaled 512x7" in markdown(result)
    assert all(row.equal == row.compared for row in result.figures())
    write_json(result, tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text())["labels"]["cost_scaled"] is True


def test_a_narrow_console_explains_only_its_columns(bench: Bench) -> None:
    result = bench(baselines=(), drafters=("none",), warmup=0, max_new_tokens=2, limit=1)
    shown = {}
    for width in (123, 124):
        console = Console(file=io.StringIO(), width=width, soft_wrap=True)
        print_table(result, console)
        shown[width] = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    for name in ("CPU time: ", "accepted: ", "fed/step: ", "target, draft, overhead: "):
        assert name in shown[124]
        assert name not in shown[123]
    for name in ("speed-up: ", "tokens/forward: ", "accepted/draft: ", "equal: ", "same bits: "):
        assert name in shown[123]
    assert "tokens/forward: tokens per request and forward pass, without the first" in shown[123]
    assert "fed/step: rows (tokens) per request and step." in shown[124]
    note = "6 more columns need a terminal with at least 124 columns, or --markdown FILE."
    assert note in shown[123]
    assert note not in shown[124] + markdown(result)
    assert "same/" not in shown[123] + shown[124]


@pytest.mark.parametrize(
    ("long", "words"),
    [(0, ""), (1, "1 prompt was shortened to"), (2, "2 prompts were shortened to")],
)
def test_shortened_prompts_are_counted(bench: Bench, tmp_path: Path, long: int, words: str) -> None:
    prompts = tmp_path / "some.jsonl"
    texts = [("abc" * 1000 if number < long else "abc") for number in range(3)]
    lines = [
        json.dumps({"id": number, "category": "c", "turns": [text]})
        for number, text in enumerate(texts)
    ]
    prompts.write_text("\n".join(lines))
    result = bench(
        baselines=(),
        drafters=("none",),
        warmup=0,
        max_new_tokens=2,
        prompts=(str(prompts),),
        limit=0,
    )
    assert result.cut_prompts == long
    assert ("shortened to" in markdown(result)) == bool(long)
    assert words in markdown(result)
    setting = " ".join(BenchPart.of("a part of a paper", result).setting)
    assert (f"{long} prompts too long" in setting) == bool(long)


def test_batches_skip_methods_that_transformers_lacks(bench: Bench) -> None:
    result = bench(baselines=BASELINES, batch=3, limit=4, ignore_eos=True)
    assert list(result.skipped) == list(BASELINES[1:])
    assert result.methods == ("transformers", *DRAFTERS)
    assert [len(call.rows) for call in result.calls[:: len(result.methods)]] == [3, 1]
    figures = result.figures()
    assert all(row.equal == row.compared and row.new_tokens == 80 for row in figures)
    assert figures[1].compared == 4
    assert result.figures("maths")[1].tokens_per_second is None, (
        "a mixed batch's time belongs to no category"
    )
    assert result.figures("maths")[1].tokens_per_forward == 1.0
    assert "skipped, not possible in transformers" in markdown(result)


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 2), (1000.0, 0)])
def test_progress_is_logged_without_a_terminal(
    seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.bench.run.PROGRESS_SECONDS", seconds)
    config = changed(
        BenchConfig(), baselines=(), drafters=("none",), limit=2, max_new_tokens=2, warmup=0
    )
    run_bench(config)
    logged = re.findall(r"^bench: \S+, (\d of 2)$", capsys.readouterr().err, re.MULTILINE)
    assert logged == ["1 of 2", "2 of 2"][:lines]
    run_bench(config, progress=False)
    assert capsys.readouterr().err == ""


def test_a_drafter_alone_gets_a_note_about_its_speedup(bench: Bench) -> None:
    note = "The speed-up compares prompt_lookup with itself. Add none to --drafters."
    values: dict[str, Any] = {"baselines": (), "max_new_tokens": 2, "limit": 1}
    assert note in markdown(bench(drafters=("prompt_lookup",), **values))
    for names in (("none",), ("none", "prompt_lookup")):
        assert "with itself" not in markdown(bench(drafters=names, **values))


def test_sampled_outputs_are_compared_with_plain_decoding(bench: Bench) -> None:
    names = (*DRAFTERS, "draft_model:max_draft_tokens=3,verification=follow")
    result = bench(drafters=names, temperature=0.8, top_k=20, seed=7)
    assert result.reference == "none"
    compared = {row.method: (row.equal, row.compared) for row in result.figures()}
    assert compared == {
        "transformers": (0, 0),
        "none": (0, 0),
        "prompt_lookup": (2, 2),
        DRAFTERS[2]: (0, 0),
        names[-1]: (2, 2),
    }


def test_a_different_answer_is_located(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = LLM.generate

    def changed_output(self: LLM, *arguments: Any) -> Any:
        answers = generate(self, *arguments)
        changed = list(answers[0].token_ids)
        changed[1] = (changed[1] + 1) % 250
        return [dataclasses.replace(answers[0], token_ids=changed)]

    monkeypatch.setattr(LLM, "generate", changed_output)
    result = bench(drafters=("none",), limit=1)
    (divergence,) = result.divergences
    assert (divergence.method, divergence.prompt, divergence.position) == ("none", "prompts-0", 1)
    assert divergence.got == ((divergence.expected or 0) + 1) % 250
    assert divergence.top_gap > 0
    assert (divergence.choice_gap or 0) >= divergence.top_gap
    assert (result.figures()[1].equal, result.figures()[1].compared) == (0, 1)
    assert "Answers that differ from those of transformers: 1." in markdown(result)
    many = dataclasses.replace(result, divergences=(divergence,) * 8)
    assert "\n- ... and 3 more; --json FILE writes all of them.\n" in markdown(many)


def test_an_interrupted_run_keeps_whole_rounds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt(monkeypatch, 4)
    result = bench(drafters=("none", "prompt_lookup"), limit=3, warmup=0)
    assert not result.complete
    assert [call.unit for call in result.calls] == [0] * 3
    write_json(result, tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text())["complete"] is False
    assert "PARTIAL" in markdown(result)


def test_a_run_ends_after_its_time_limit(bench: Bench) -> None:
    result = bench(drafters=("none",), limit=4, max_seconds=1e-9)
    assert [call.method for call in result.calls] == ["transformers", "none"]


def test_a_run_interrupted_at_once_can_be_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(self: LLM, *arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "generate", interrupted)
    result = bench(drafters=("none",))
    assert result.calls == ()
    print_table(result, Console(file=io.StringIO()))
    write_png(result, tmp_path / "bench.png")
    write_json(result, tmp_path / "bench.json")
    assert read_json(tmp_path / "bench.json") == result


def test_impossible_runs_are_refused_before_measuring(bench: Bench, pair: Pair) -> None:
    config = BenchConfig(ModelOptions("tiny"), ("draft_model",))
    with pytest.raises(ConfigError, match="needs a draft model"):
        run_bench(config, target=pair.target, tokenizer=byte_tokenizer(), progress=False)
    with pytest.raises(CapacityError, match="Reduce max_new_tokens"):
        bench(max_new_tokens=100_000)
    with pytest.raises(ConfigError, match="nothing is left to run"):
        bench(drafters=(), baselines=(BASELINES[1],), batch=2)


def test_other_files_are_refused_as_results(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"schema": 99}')
    with pytest.raises(ConfigError, match="schema 99"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json(tmp_path / "b.json")
    with pytest.raises(ConfigError, match=r"the prompts .* cannot be read"):
        load_prompts([demo.TARGET])
