"""Check the contents of the wheel against the source tree.

`make package` builds the wheel, installs it and uses it outside the checkout.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

from packaging.version import Version

import paceline

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def data_files() -> set[Path]:
    """Return the data files in paceline/ that git tracks, or all of them without git."""
    listed = subprocess.run(
        ["git", "ls-files", "paceline"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    files = [ROOT / name for name in listed] or [
        path for path in (ROOT / "paceline").rglob("*") if path.is_file()
    ]
    return {path for path in files if path.suffix not in (".py", ".pyc")}


def test_every_data_file_is_in_the_wheel() -> None:
    globs = PROJECT["tool"]["setuptools"]["package-data"]["paceline"]
    packed = {path for pattern in globs for path in (ROOT / "paceline").glob(pattern)}
    assert data_files() <= packed
    assert {"calibration.json", "py.typed", "prompts.jsonl", "manifest.json"} <= {
        path.name for path in packed
    }


def test_licences_of_embedded_data_are_in_the_wheel() -> None:
    patterns = PROJECT["project"]["license-files"]
    shipped = {path.name for pattern in patterns for path in ROOT.glob(pattern)}
    assert {"LICENSE", "GPTeacher.txt", "grade-school-math.txt", "Python.txt"} <= shipped
    demo = ROOT / "paceline" / "demo"
    sources = (
        json.loads((demo / "training.json").read_text())["sources"]
        + json.loads((demo / "store.json").read_text())["sources"]
    )
    licence_of = {
        "gpteacher": "GPTeacher.txt",
        "gsm8k": "grade-school-math.txt",
        "Python": "Python.txt",
    }
    for source in sources:
        assert any(source["name"].startswith(start) for start in licence_of), (
            f"no licence for {source['name']}"
        )


def test_the_version_is_written_once() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "paceline.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", paceline.__version__)
    assert importlib.metadata.version("paceline") == paceline.__version__


def test_citation_and_changelog_have_the_version() -> None:
    assert f"\nversion: {paceline.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{paceline.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_lower_bounds_are_the_versions_tested() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pins = {
        name: Version(version)
        for name, version in (line.split("==") for line in lines if "==" in line)
    }
    required = [*PROJECT["project"]["dependencies"]]
    required += [
        one
        for extra in ("test", "bench", "chat", "gguf", "grammar", "images", "llama-cpp", "serve")
        for one in extras[extra]
    ]
    bounds = dict(one.split(">=") for one in required if not one.startswith("paceline"))
    pins.pop("huggingface_hub")  # the lowest version that the lowest transformers supports
    assert {name: Version(lowest) for name, lowest in bounds.items()} == pins


def test_every_requirement_of_the_extras_is_pinned() -> None:
    """Check the names of the extras, and that each requirement is pinned."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert {
        "bench",
        "chat",
        "cuda",
        "gguf",
        "grammar",
        "images",
        "llama-cpp",
        "datasets",
        "serve",
        "vllm",
        "docs",
        "replay",
        "test",
        "dev",
    } == set(extras)
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    installed = [
        one
        for extra in (
            "dev",
            "docs",
            "test",
            "bench",
            "chat",
            "gguf",
            "grammar",
            "images",
            "llama-cpp",
            "serve",
        )
        for one in extras[extra]
    ]
    for requirement in [*PROJECT["project"]["dependencies"], *installed]:
        name = re.split(r"[\[><=]", requirement)[0]
        assert name == "paceline" or name in pins, f"{name} is not pinned in constraints.txt"


def test_make_runs_this_checkout() -> None:
    """The caller's path may name another checkout."""
    shown = subprocess.run(
        ["make", "--silent", "--eval", "shown:; @echo $$PYTHONPATH", "shown"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "/elsewhere"},
    ).stdout
    assert shown == f"{ROOT}\n"
