"""Test the commands `paceline verify` and `paceline doctor`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline import demo
from paceline.backend.products import Products
from paceline.bench import verify as side_by_side
from paceline.bench.environment import look_around
from paceline.bench.models import Models, load_models
from paceline.bench.verify_result import DrafterVerdict, Logit, VerifyResult
from paceline.cli.verify import _write_json
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from paceline.invariance.invariance import Invariance
from tests.support.cli import call
from tests.support.shared import without_budget

pytestmark = pytest.mark.processor
SHORT = ("--limit", "3", "-n", "12", "--threads", "1")


@pytest.fixture(autouse=True)
def separate_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


class RowDependentLinear(nn.Linear):
    """Linear layer that is less precise for one row than for several."""

    def forward(self, input: Tensor) -> Tensor:
        result = super().forward(input)
        single = result.numel() == result.shape[-1]
        return result.to(torch.float8_e4m3fn).to(result.dtype) if single else result


def coarse_for_one_row(*arguments: object) -> Models:
    models = load_models(*arguments)  # type: ignore[arg-type]
    target: Any = models.target
    target.lm_head.__class__ = RowDependentLinear
    target.model.layers[0].mlp.down_proj.__class__ = RowDependentLinear
    return models


def test_equal_outputs_are_reported(tmp_path: Path) -> None:
    words = (
        "--drafters",
        "none,prompt_lookup,draft_model",
        "--batch",
        "2",
        "--batch-invariant",
        "on",
    )
    status, output = call("verify", *words, *SHORT, "--json", tmp_path / "result.json")
    assert status == 0
    assert "prompt_lookup, batch 2, chunks of 512: 0 of 3 answers differ" in output
    assert "0 of 9 answers differ" in output
    assert [line.endswith(" (draft budget off)") for line in output.splitlines()[:3]] == [
        False,
        True,
        True,
    ]
    assert "batch invariance is on: the self-test passed on this machine\n" in output
    result = json.loads((tmp_path / "result.json").read_text())
    assert (
        result["differing"],
        result["answers"],
        result["invariance"]["on"],
        result["complete"],
    ) == (0, 9, True, True)
    assert result["environment"]["threads"] == 1
    assert [one["drafter"] for one in result["verdicts"]] == [
        "none",
        "prompt_lookup",
        "draft_model",
    ]
    assert result["verdicts"][2]["accepted"] > 0


def test_several_batches_and_chunks_in_one_run(tmp_path: Path) -> None:
    words = (
        "--drafters",
        "none,prompt_lookup",
        "--batch",
        "1,3",
        "--prefill-chunk",
        "4,512",
        "--batch-invariant",
        "on",
    )
    status, output = call("verify", *words, *SHORT, "--json", tmp_path / "result.json")
    assert status == 0
    assert "0 of 24 answers differ" in output
    verdicts = json.loads((tmp_path / "result.json").read_text())["verdicts"]
    tried = [(one["drafter"], one["batch"], one["prefill_chunk"]) for one in verdicts]
    assert tried == [
        (name, batch, chunk)
        for chunk in (4, 512)
        for batch in (1, 3)
        for name in ("none", "prompt_lookup")
    ]


def test_an_interrupted_run_keeps_its_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, calls = side_by_side._verdict, itertools.count(1)

    def interrupted(*arguments: Any) -> DrafterVerdict:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return verdict(*arguments)

    monkeypatch.setattr(side_by_side, "_verdict", interrupted)
    words = ("--drafters", "none,prompt_lookup", "--batch", "1,3", "--dtype", "float32")
    status, output = call("verify", *words, *SHORT, "--json", tmp_path / "result.json")
    assert status == 130
    assert "0 of 6 answers differ" in output
    assert "interrupted; 2 of 4 drafters and batches were finished" in capsys.readouterr().err
    result = json.loads((tmp_path / "result.json").read_text())
    assert not result["complete"]
    assert [one["batch"] for one in result["verdicts"]] == [1, 1]


@pytest.mark.parametrize(
    "words", [("--batch", "0"), ("--batch", "1,x"), ("--prefill-chunk", "64 0")]
)
def test_bad_batches_and_chunks_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"verify: (batch|prefill_chunk): got .*; expected positive integers\. Write --",
    ):
        call("verify", *words, *SHORT)


def test_a_difference_is_reported_with_its_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a layer that computes one row less precisely."""
    monkeypatch.setattr(side_by_side, "load_models", coarse_for_one_row)
    drafter = without_budget("prompt_lookup:max_ngram=2")
    words = (
        "--drafters",
        drafter,
        "--dtype",
        "float32",
        "--batch-invariant",
        "off",
        "-n",
        "24",
        "-t",
        "1.5",
        "--limit",
        "4",
    )
    status, output = call("verify", *words, "--threads", "1", "--json", tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert status == 1
    (verdict,) = result["verdicts"]
    first = verdict["first"]
    assert verdict["differing"] > 0
    assert first["tokens"][0] != first["tokens"][1]
    assert f"prompt {first['prompt']}, token {first['position']}: {first['tokens'][0]} " in output
    for side in ("plain", "drafted"):
        assert len(first[side]) == 2
        assert all(f"({logit['bits']})" in output for logit in first[side])
    assert first["plain"] != first["drafted"]


def test_tokens_per_forward_is_a_ratio_of_sums() -> None:
    """A mean of the answers' ratios would be 5."""
    requests = []
    for tokens, forwards in ((10, 1), (10, 9)):
        request = Request([1], SamplingParams(tokens))
        request.append([2] * tokens)
        request.counters.prefill_forwards = 1
        request.counters.target_forwards = 1 + forwards
        requests.append(request)
    assert side_by_side._tokens_per_forward(requests) == 1.8
    assert side_by_side._tokens_per_forward([]) == 1.0


def test_a_spec_can_keep_the_draft_budget() -> None:
    words = ("--drafters", "prompt_lookup:budget=true", "--dtype", "float32")
    _, output = call("verify", *words, *SHORT)
    assert "tokens per forward\n" in output


def test_sampled_drafts_need_not_give_the_same_text() -> None:
    status, output = call(
        "verify", "--drafters", "draft_model", "--dtype", "float32", "-t", "1", *SHORT
    )
    assert status == 0
    assert (
        "draft_model, batch 1, chunks of 512: samples its own drafts, so only the distribution is"
        " the same, not the text" in output
    )
    assert "0 of 0 answers differ" in output


def test_batch_invariance_pads_row_dependent_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "load_models", coarse_for_one_row)
    status, output = call(
        "verify",
        "--drafters",
        "prompt_lookup,draft_model",
        "--dtype",
        "float32",
        "--batch-invariant",
        "on",
        *SHORT,
    )
    assert status == 0
    assert "0 of 6 answers differ" in output


def test_results_with_replaced_products_are_written(tmp_path: Path) -> None:
    found = Invariance(True, "rows agree", None, 1, Products((nn.Linear(8, 8),)))
    _write_json(
        VerifyResult("model", "bfloat16", 2, look_around(torch.device("cpu")), found, (), 0, 0, ""),
        tmp_path / "result.json",
    )
    assert (
        json.loads((tmp_path / "result.json").read_text())["invariance"]["reason"] == "rows agree"
    )


def test_logits_are_shown_with_their_bits() -> None:
    assert Logit.of(torch.tensor(-1.0)) == Logit(-1.0, "0xbf800000")
    assert Logit.of(torch.tensor(1.0, dtype=torch.bfloat16)) == Logit(1.0, "0x3f80")
    assert Logit.of(torch.tensor(-2.0, dtype=torch.float16)) == Logit(-2.0, "0xc000")


def test_a_missing_folder_is_reported_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("verify", "--json", "nowhere/result.json")
    assert "cannot write 'nowhere/result.json': there is no folder" in capsys.readouterr().err


def test_doctor_without_a_model() -> None:
    status, output = call("doctor")
    assert status == 0
    for what in (
        "paceline",
        "torch",
        "transformers",
        "numba",
        "processor",
        "instructions",
        "cores",
        "cache",
        "accelerator",
    ):
        assert any(line.startswith(what) for line in output.splitlines()), what


def test_doctor_on_a_model() -> None:
    status, output = call("doctor", demo.NAME, "--threads", "1", "--dtype", "float32")
    assert status == 0
    assert "LlamaForCausalLM" in output
    assert "float32 on cpu" in output
    assert "on: the self-test passed on this machine; forward passes over 1 to 1024 rows" in output
    assert "lm_head" in output
    assert "bit-identical rows" in output
