"""Test that output is written byte for byte, and coloured on terminals only."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from paceline.cli import show
from paceline.llm import Chunk

TEXT = "all:\n\tcc -o x x.c\r\n\f\v\b\x1b[31m[bold]\u2028é\u00a0 \n\n"


def chunks(*parts: tuple[str, bool], interrupt: bool = False) -> Generator[Chunk, None, None]:
    yield Chunk("".join(text for text, _ in parts), [], [], list(parts))
    if interrupt:
        raise KeyboardInterrupt


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make standard output a terminal within the context; yield the end to read from."""
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8", newline="") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        yield master
        monkeypatch.undo()
    os.close(master)


@pytest.mark.parametrize("forced", [False, True])
def test_output_is_written_byte_for_byte(
    forced: bool, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    shown = show.print_stream(chunks((TEXT, True), (TEXT, False)))
    assert capfdbinary.readouterr().out == (TEXT * 2).encode()
    assert shown == show.Shown(TEXT * 2, True)


@pytest.mark.parametrize(
    ("no_color", "expected"), [(False, b"\x1b[32ma\tb\x1b[0mc"), (True, b"a\tbc")]
)
def test_colour_is_for_terminals(
    no_color: bool, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show.out, "no_color", no_color)
    with terminal(monkeypatch) as reader:
        show.write("a\tb", accepted=True)
        show.write("c")
        sys.stdout.flush()
        assert os.read(reader, 100) == expected


def test_interrupted_output_is_returned_and_reported(capfd: pytest.CaptureFixture[str]) -> None:
    shown = show.print_stream(chunks(("half", False), interrupt=True), end="\n")
    assert shown == show.Shown("half", False)
    found = capfd.readouterr()
    assert found.out == "half\n"
    assert "stopped" in found.err


def test_errors_are_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    show.print_error("first\n  second " + "word " * 100)
    assert capfd.readouterr().err.count("\n") == 1
