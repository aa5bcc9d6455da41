"""`paceline plan`: by name without torch, measured with the model, and bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.errors import ConfigError
from tests.support.cli import call


def test_a_named_device(tmp_path: Path) -> None:
    status, out = call(
        "plan", "demo", "--hardware", "h100", "--batch", "8", "--json", tmp_path / "plan.json"
    )
    assert status == 0
    assert (
        "demo (0.01 B parameters, bfloat16) on NVIDIA H100 SXM, batch 8 after 512 cached tokens"
        in out
    )
    (best,) = re.findall(r"^(\d+)\* ", out, re.MULTILINE)
    assert json.loads((tmp_path / "plan.json").read_text())["best"]["size"] == int(best)


def test_this_machine(tmp_path: Path) -> None:
    """By the curve of the engine's budget: plain decoding is 1, and nothing is known apart."""
    status, out = call(
        "plan",
        "demo",
        "--hardware",
        "measured",
        "--tokens-per-forward",
        "code",
        "--json",
        tmp_path / "plan.json",
    )
    assert status == 0
    assert "on this machine" in out
    found = json.loads((tmp_path / "plan.json").read_text())
    assert (
        found["peak"],
        found["plain"],
        found["steps"][0]["relative"],
        found["steps"][0]["products"],
    ) == (None, [], 1.0, None)
    assert [one["seconds"] for one in found["steps"]] == sorted(
        one["seconds"] for one in found["steps"]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("demo", "--hardware", "h10"), r"hardware: got 'h10'\. Did you mean 'h100'"),
        (("demo", "--hardware", "h100", "--batch", "0"), "batch: got 0; expected at least 1"),
        (
            ("demo", "--hardware", "h100", "--context", "2048"),
            "context: got 2048; expected at most 2047",
        ),
        (
            ("demo", "--hardware", "h100", "--weight-bits", "3"),
            "weight_bits: got 3; expected 4, 8 or 16",
        ),
        (
            ("demo", "--hardware", "measured", "--tensor-parallel", "2"),
            "--weight-bits and --tensor-parallel need a named device",
        ),
        (("nowhere", "--hardware", "h100"), "there is no config.json at 'nowhere'"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call("plan", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--hardware"),
        (
            ("--hardware", "h100", "--png", "nowhere/x.png"),
            "cannot write 'nowhere/x.png': there is no folder",
        ),
    ],
)
def test_lines_that_cannot_be_read(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["plan", "demo", *words])
    assert message in capsys.readouterr().err
