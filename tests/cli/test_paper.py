"""Test `paceline paper`, which runs the reproductions of the repository."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

import paceline
from paceline.cli import paper
from paceline.cli.files import ResultFiles
from paceline.cli.main import main, run
from paceline.errors import DatastoreError
from papers import PaperConfig, cli


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], "Usage: paceline paper COMMAND\n"),
        ([], "Usage: paceline paper COMMAND\n"),
        (["lookahead", "--help"], "Usage: paceline paper lookahead [MODEL] [OPTIONS]\n"),
        (["--version"], f"{paceline.__version__}\n"),
    ],
)
def test_help_is_that_of_the_papers(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["paper", *words]) == 0
    assert capsys.readouterr().out.startswith(expected)


def test_a_paper_gets_all_words(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[PaperConfig] = []

    def record(config: PaperConfig, files: ResultFiles) -> int:
        measured.append(config)
        return 0

    monkeypatch.setattr(cli, "_measure", record)
    assert run(["paper", "sssd", "some/model", "--threads", "1", "--prompts", "a b.jsonl"]) == 0
    command = "paceline paper sssd some/model --threads 1 --prompts 'a b.jsonl'"
    assert measured[0].command() == command
    assert run(shlex.split(command)[1:]) == 0
    assert measured[1] == measured[0]


def test_an_installation_without_the_papers_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paceline, "__file__", str(tmp_path / "paceline" / "__init__.py"))
    monkeypatch.setattr(sys, "argv", ["paceline", "paper", "lookahead"])
    path = list(sys.path)
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert exit_status.value.code == 2
    assert capsys.readouterr().err == (
        "error: paper: the folder papers/ is missing, because it exists only in the repository."
        " Clone the repository and run `python -m paceline paper` there.\n"
    )
    assert sys.path == path


def test_the_repository_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(paceline.__file__).parents[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry) != root])
    assert paper._papers_app().name == ("paceline paper",)
    assert sys.path[0] == str(root)


def test_an_unknown_paper_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["paper", "lokahead"])
    assert "Unknown command 'lokahead'. Did you mean lookahead?" in capsys.readouterr().err
    with pytest.raises(DatastoreError, match="no store"):
        run(["paper", "sssd", "--datastore", "/missing", "--limit", "1"])
