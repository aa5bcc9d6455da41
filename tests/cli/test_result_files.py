"""Test where results go: links, devices, full disks, unwritable paths."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from paceline.cli.files import ResultFiles
from paceline.errors import ConfigError
from paceline.util.files import append, make_folder, require_writable, write_atomically
from tests.support.commands import run_command


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, real = tmp_path / "link.json", tmp_path / "there" / "real.json"
    link.symlink_to(real)
    for content in (b"first", b"second"):  # first to a missing file, then to an existing one
        write_atomically(link, content)
        assert link.is_symlink()
        assert real.read_bytes() == content


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_devices_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_atomically(link, b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert link.is_symlink()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


@pytest.mark.parametrize("write", [write_atomically, append])
def test_a_full_device_is_an_error(write: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(write)
    with pytest.raises(ConfigError, match=r"/dev/full.*No space left"):
        write("/dev/full", b"content")
    with pytest.raises(ConfigError, match="No space left"):
        ResultFiles(json=Path("/dev/full")).write(
            lambda path: write(path, b"x"), lambda path: None, lambda picture: ""
        )
    assert "wrote" not in capsys.readouterr().err


def test_a_failed_result_does_not_prevent_others(tmp_path: Path) -> None:
    files = ResultFiles(json=Path("/dev/full"), markdown=tmp_path / "result.md")
    with pytest.raises(ConfigError, match="No space left"):
        files.write(
            lambda path: write_atomically(path, b"x"), lambda path: None, lambda picture: "section"
        )
    assert (tmp_path / "result.md").read_text() == "section\n"


@pytest.mark.parametrize(
    "name",
    ["", "no/such/folder/r.json", "file/r.json", "circle", "n" * 256, "a\0b", "/proc/r.json"],
)
def test_unwritable_paths_are_refused_beforehand(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    before = sorted(tmp_path.iterdir())
    for refuse in (require_writable, lambda path: ResultFiles(png=path)):
        with pytest.raises(ConfigError, match=r"^cannot write"):
            refuse(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_folders_are_created_or_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^cannot write"):
        make_folder(tmp_path / "file")


def test_standard_output_takes_one_result() -> None:
    with pytest.raises(ConfigError, match="only one result"):
        ResultFiles(json=Path("-"), markdown=Path("-"))


@pytest.mark.parametrize("where", ["-", "/dev/stdout"])
def test_standard_output_has_only_the_result(where: str, tmp_path: Path) -> None:
    """With '-', the table goes to standard error.

    With the name of the device, both are on standard output, one after the other.
    """
    traces = tmp_path / "traces.jsonl"
    traces.write_text(json.dumps({"prompt": [1, 2, 3, 1, 2], "output": [3, 1, 2, 3]}) + "\n")
    done = run_command(
        "paceline", "replay", str(traces), "--drafters", "prompt_lookup", "--json", where
    )
    assert done.returncode == 0, done.stderr
    table, result = done.stdout[: done.stdout.index("{")], done.stdout[done.stdout.index("{") :]
    assert json.loads(result)["kind"] == "paceline replay"
    assert ("tokens/step" in table) == (where != "-")
    assert ("tokens/step" in done.stderr) == (where == "-")
