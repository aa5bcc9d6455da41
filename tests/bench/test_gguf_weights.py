"""Test which weights of a GGUF file `bench` and `verify` run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from paceline.bench import (
    BenchConfig,
    BenchResult,
    markdown,
    read_json,
    run_bench,
    write_json,
)
from paceline.bench.models import load_models
from paceline.bench.serving.run import engine_of
from paceline.bench.serving.settings import ServingConfig
from paceline.model import loading
from paceline.model.weight_formats import packed_formats
from paceline.util.options import ModelOptions, changed
from tests.support.cli import call
from tests.support.gguf import write_gguf

PACKED, CONVERTED = "packed Q8_0 (GGUF)", "converted to bfloat16 (GGUF)"
SECOND_COPY = ", and a second copy in bfloat16 for transformers"
Bench = Callable[..., BenchResult]


@pytest.fixture(autouse=True)
def separate_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf_file(tmp_path: Path) -> str:
    return str(write_gguf(tmp_path / "tiny.gguf", "Q8_0"))


@pytest.fixture
def bench(tmp_path: Path, gguf_file: str) -> Bench:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": str(n), "category": "c", "turns": ["abcab" * n]} for n in (1, 2)]
    prompts.write_text("\n".join(map(json.dumps, lines)))

    def run(**options: Any) -> BenchResult:
        values = {"model": gguf_file, "prompts": (str(prompts),), "max_new_tokens": 8, "warmup": 0}
        config = changed(BenchConfig(), **{**values, "batch_invariant": "on", **options})
        return run_bench(config, progress=False)

    return run


@pytest.mark.parametrize("has_kernels", [True, False])
def test_packed_weights_are_the_default_with_bfloat16_instructions(
    gguf_file: str, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "has_bfloat16_kernels", lambda: has_kernels)
    config = changed(BenchConfig(), model=gguf_file, baselines=())
    models: Any = load_models(config, None, None, None)
    assert (packed_formats(models.target) == ("Q8_0",)) == has_kernels
    assert models.weights == (PACKED if has_kernels else CONVERTED)
    assert models.transformers_target is models.target
    assert models.tokenizer("abc")["input_ids"]


def test_transformers_runs_a_copy_with_plain_weights(
    bench: Bench, tmp_path: Path, separate_cache: Path
) -> None:
    result = bench(unpack=False, baselines=("transformers", "transformers:prompt_lookup"))
    assert not list(separate_cache.glob("gguf-v*/*"))
    assert (result.baseline, result.reference) == ("transformers", "none")
    assert result.weights == PACKED + SECOND_COPY
    figures = {row.method: row for row in result.figures()}
    assert figures["none"].compared == 0
    assert (figures["prompt_lookup"].equal, figures["transformers"].compared) == (2, 2)
    report = markdown(result)
    assert f"; weights: {PACKED}{SECOND_COPY}; bfloat16;" in report
    assert "exactly the same tokens as none" in report
    assert "--no-unpack" in result.config.command().split()
    write_json(result, tmp_path / "result.json")
    assert read_json(tmp_path / "result.json") == result


def test_a_converted_model_is_shared_with_transformers(bench: Bench) -> None:
    result = bench(unpack=True, drafters=("none",))
    assert (result.reference, result.weights) == ("transformers", CONVERTED)
    assert "--unpack" in result.config.command().split()


def test_a_copy_is_made_only_for_baselines_that_run(bench: Bench) -> None:
    result = bench(unpack=False, baselines=("transformers:prompt_lookup",), batch=2)
    assert list(result.skipped) == ["transformers:prompt_lookup"]
    assert result.weights == PACKED


def test_without_plain_decoding_transformers_is_the_reference(bench: Bench) -> None:
    result = bench(unpack=False, drafters=("prompt_lookup",))
    assert result.reference == "transformers"


def test_an_enlarged_model_has_converted_weights(bench: Bench) -> None:
    result = bench(unpack=False, cost_scale="128x4", drafters=("none",))
    assert (result.reference, result.weights) == ("transformers", CONVERTED)


def test_a_server_under_load_runs_the_requested_weights(gguf_file: str) -> None:
    for unpack, formats in ((True, ()), (False, ("Q8_0",))):
        llm, _ = engine_of(ServingConfig(ModelOptions(gguf_file, unpack=unpack)))
        model: Any = llm.model.model
        assert packed_formats(model) == formats


@pytest.mark.parametrize(("word", "weights"), [("--no-unpack", PACKED), ("--unpack", CONVERTED)])
def test_verify_reports_the_weights(
    gguf_file: str, tmp_path: Path, word: str, weights: str
) -> None:
    file = tmp_path / "verify.json"
    words = ("--drafters", "none,prompt_lookup", "--limit", "2", "-n", "8", "--json", file)
    status, output = call("verify", gguf_file, word, "--batch-invariant", "on", *words)
    assert status == 0
    assert "0 of 4 answers differ" in output
    assert f"weights: {weights}" in output
    assert json.loads(file.read_text())["weights"] == weights
