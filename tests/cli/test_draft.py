"""Test `paceline draft`: train a draft model and evaluate it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import demo
from paceline.model.reduced_vocabulary import FILE
from tests.support.cli import call


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "answers.jsonl"
    call(
        "record",
        "demo",
        "--dtype",
        "float32",
        "--limit",
        "8",
        "-n",
        "24",
        "--top",
        "4",
        "--out",
        str(path),
    )
    return path


def test_train_and_evaluate_a_draft_model(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, texts = tmp_path / "draft", tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"text": "The cat sat on the mat. " * 20}) + "\n")
    options = [
        "--hidden",
        "32",
        "--layers",
        "1",
        "--minutes",
        "0.02",
        "--held-out",
        "4",
        "--batch",
        "256",
        "--validations",
        "2",
    ]
    train = [
        "draft",
        "train",
        "demo",
        "--recording",
        str(answers),
        "--text",
        str(texts),
        "--out",
        str(out),
        *options,
    ]
    assert call(*train)[0] == 0
    assert f"wrote {out}" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} >= {
        "model.safetensors",
        "config.json",
        FILE,
        "training.json",
        "curve.png",
    }
    record = json.loads((out / "training.json").read_text())
    assert record["settings"]["seed"] == 0
    assert record["about"]["recordings"] == ["answers.jsonl"]
    assert call(*train)[0] == 0
    assert "is finished" in capsys.readouterr().err
    result = tmp_path / "result.json"
    picture = tmp_path / "result.png"
    options = ["--recording", str(answers), "--json", str(result), "--png", str(picture)]
    assert call("draft", "evaluate", "demo", str(out), *options)[0] == 0
    found = json.loads(result.read_text())
    assert found["kind"] == "draft judgement"
    assert len(found["chains"]["all"]["accepted"]) == 4
    assert picture.stat().st_size > 1000


def test_the_embedded_draft_model_is_evaluated_by_name(answers: Path) -> None:
    status, shown = call(
        "draft", "evaluate", "demo", demo.NAME, "--recording", str(answers), "--length", "3"
    )
    assert status == 0
    assert "speed" in shown
    assert "8 greedy answers" in shown
