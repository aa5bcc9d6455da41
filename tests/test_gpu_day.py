"""Run `scripts/gpu_day.py` on a CPU with tiny sizes, and resume it after faults."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the script's command with few drafters."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("gpu_parts.command")
    sizes = dataclasses.replace(
        module.SMOKE,
        drafters=("prompt_lookup",),
        methods=("none", "prompt_lookup"),
        invariant_methods=("none",),
        tokens=4,
        scale="256x6",
    )
    monkeypatch.setattr(module, "SMOKE", sizes)
    return module


def rows(folder: Path, part: str) -> dict[str, Any]:
    document = json.loads((folder / f"{part}.json").read_text())
    assert document["finished"], part
    found: dict[str, Any] = document["rows"]
    return found


def test_forward_passes_are_predicted(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, times = "context 512, 1 requests, 1 rows each", []
    measured = {"rows": {name: {"graph_ms": 7.25}}}
    (tmp_path / "graph.json").write_text(json.dumps(measured))
    for card in ("h100", "rtx4090"):
        assert command.main(["--out", str(tmp_path), "--predict", card]) == 0
        lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        predicted_ms, measured_ms = lines[name].split("; ")
        assert measured_ms == "7.25"
        times.append(float(predicted_ms))
    assert 4 < times[0] < 5.5  # 15 GB of weights at 3.35 TB/s
    assert 14 < times[1] < 17  # at 1.01 TB/s


def test_speeds_are_predicted(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {"rows": {"batch 1, none": {"tokens_per_s": 100.5}}}
    (tmp_path / "end_to_end.json").write_text(json.dumps(measured))
    speeds = {}
    for card in ("h100", "rtx4090"):
        assert command.main(["--out", str(tmp_path), "--predict", card]) == 0
        lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        assert lines["batch 1, none"].endswith("; 100.50")
        speeds[card] = {key: float(lines[key].split("; ")[0]) for key in lines if "batch" in key}
        assert speeds[card]["batch 8, auto"] > speeds[card]["batch 8, none"]
    # A step reads 13 GB of weights and takes 0.4 ms on the host.
    assert 1 / speeds["h100"]["batch 1, none"] == pytest.approx(13e9 / 3.35e12 + 4e-4, rel=0.05)
    assert 1 / speeds["rtx4090"]["batch 1, none"] == pytest.approx(13e9 / 1.008e12 + 4e-4, rel=0.05)


def test_the_predicted_target_is_the_measured_one(command: Any) -> None:
    shapes = importlib.import_module("gpu_parts.prediction")._target_shapes()
    weights = sum(one.inputs * one.outputs * one.count for one in shapes.matmuls)
    assert weights == pytest.approx(6.49e9, rel=0.005)  # parameters of the target on the GPU page


def test_an_unknown_card_is_refused(command: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="There is no card 'h1000'"):
        command.main(["--out", str(tmp_path), "--predict", "h1000"])


def test_all_measuring_parts_yield_values(
    command: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [part for part in command.PARTS if part != "tests"]
    assert command.main(["--smoke", "--out", str(tmp_path), *parts]) == 0
    for part in parts:
        found = rows(tmp_path, part)
        assert found, part
        assert not [name for name, values in found.items() if "error" in values], part
    assert "Finished" in capsys.readouterr().out
    exact = rows(tmp_path, "exact")
    assert {values["equal"] for values in exact.values()} == {"2/2"}
    assert all(values["same_bits"] for values in rows(tmp_path, "graph").values())
    whole = rows(tmp_path, "end_to_end")
    assert whole["batch 2, prompt_lookup"]["equal"] == "2/2"
    assert whole["batch 1, prompt_lookup"]["x_transformers"] > 0
    check_tables(command, tmp_path, monkeypatch)


def check_tables(command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the results in one file fill the tables of the GPU page."""
    result = folder / "results" / "gpu-tested.json"
    assert command.main(["--out", str(folder), "--summary", str(result)]) == 0
    monkeypatch.setattr(importlib.import_module("benchmark_data"), "RESULTS", result.parent)
    tables = importlib.import_module("benchmark_gpu")
    assert "gpu-tested" in tables.cards()
    assert "| 2 | `prompt_lookup` |" in tables.speed()
    assert "| float32 | paceline, sampled | 4 of 4 |" in tables.exactness()
    assert "context 32, 4 rows" in tables.forward()
    assert "context 32, 8 requests, 3 rows each" in tables.graph()
    assert "64 keys, mask bool, 4 query tokens" in tables.attention()


def test_a_second_run_repeats_only_what_failed(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--smoke", "--out", str(tmp_path), "attention"]
    assert command.main(arguments) == 0
    path = tmp_path / "attention.json"
    document = json.loads(path.read_text())
    first, second, *_ = document["rows"]
    document["rows"][first] = {"error": "it was broken"}
    document["rows"][second] = {"kept": 1}
    path.write_text(json.dumps(document))
    capsys.readouterr()
    assert command.main(arguments) == 0
    found = rows(tmp_path, "attention")
    assert found[second] == {"kept": 1}
    assert "error" not in found[first]
    assert second not in capsys.readouterr().out
    assert command.main(arguments) == 0
    assert "finished before" in capsys.readouterr().out
    assert command.main([*arguments, "--again"]) == 0
    assert rows(tmp_path, "attention")[second] != {"kept": 1}


def test_after_the_time_limit_nothing_starts(command: Any, tmp_path: Path) -> None:
    assert command.main(["--smoke", "--out", str(tmp_path), "--minutes", "0", "attention"]) == 1
    assert not (tmp_path / "attention.json").exists()


def test_a_failed_measurement_does_not_end_its_part(command: Any, tmp_path: Path) -> None:
    module = importlib.import_module("gpu_parts.run")

    def cases(run: Any) -> Any:
        yield module.Case("wrong", lambda: 1 / 0)
        yield module.Case("right", lambda: {"value": 1.0})

    run = dataclasses.replace(
        command._run(command._parser("").parse_args(["--smoke"])), out=tmp_path
    )
    assert module.run_part("made_up", cases, run)
    found = rows(tmp_path, "made_up")
    assert found["wrong"]["error"].startswith("ZeroDivisionError")
    assert found["right"] == {"value": 1.0}


def test_packages_to_bring_along_are_listed(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--list-carry"]) == 0
    text = capsys.readouterr().out
    assert "pip download" in text
    assert "cattrs" in text
