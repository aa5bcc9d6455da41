"""Run command lines as a shell does, with a time limit.

Streams may be closed, full, or abandoned by their reader.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import start_process

LIMIT = 90.0  # seconds after which a command counts as hanging
CLOSED, ABANDONED, FULL = "closed", "left", "/dev/full"
# Prefixes of notes on standard error, which are not errors.
_NOTES = ("[", "wrote ", "demo with ", "left out: ", "paceline: ")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command; `errors` are lines on standard error except notes."""

    status: int
    out: bytes
    err: str

    @property
    def errors(self) -> list[str]:
        return [
            line for line in self.err.splitlines() if line.strip() and not line.startswith(_NOTES)
        ]

    def check_refused(self, words: str = "") -> None:
        """Fail unless the command printed one error line and exited with status 2."""
        assert self.status == 2, self
        assert len(self.errors) == 1, self
        assert self.errors[0].startswith("error: "), self
        assert re.search(words, self.errors[0]), self
        self.check_clean()

    def check_clean(self) -> None:
        """Fail if the command hung, crashed or showed internals."""
        assert self.status in (0, 1, 2, 130, 141), self
        assert "Traceback" not in self.err, self
        assert len(self.err) < 5000, self


def run(
    words: Sequence[str],
    folder: Path,
    stdin: bytes | str = b"",
    stdout: str = "",
    stderr: str = "",
    interrupt: int = 0,
) -> CommandResult:
    """Run `paceline WORDS`.

    Args:
        words: Words of the command line.
        folder: Working directory.
        stdin: Content of standard input, or `CLOSED`.
        stdout: `CLOSED`, a device, or `LEFT` for a pipe without a reader; otherwise a file.
        stderr: The same for standard error.
        interrupt: Signal to send as soon as there is output.
    """
    streams = folder.parent / f"{folder.name}.streams"
    streams.mkdir(exist_ok=True)
    for name in ("out", "err"):
        (streams / name).write_bytes(b"")
    (streams / "in").write_bytes(stdin if isinstance(stdin, bytes) else b"")
    process = start_process(_run, (list(words), streams, folder, stdin == CLOSED, stdout, stderr))
    end = time.monotonic() + LIMIT
    while interrupt and process.is_alive() and time.monotonic() < end:
        if (streams / "out").stat().st_size:
            os.kill(process.pid or 0, interrupt)
            break
        time.sleep(0.01)
    process.join(max(0.0, end - time.monotonic()))
    process.kill()
    process.join()
    return CommandResult(
        process.exitcode or 0,
        (streams / "out").read_bytes(),
        (streams / "err").read_text("utf-8", "replace"),
    )


def listing(*folders: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of all files in folders except locks, to detect changes."""
    found = (path for folder in folders for path in folder.rglob("*"))
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in found
        if not path.is_dir() and path.suffix != ".lock"
    }


def _run(
    words: list[str], streams: Path, folder: Path, no_input: bool, stdout: str, stderr: str
) -> None:
    kinds = {0: CLOSED if no_input else "", 1: stdout, 2: stderr}
    opened = {
        number: _opened(streams / name, number, kinds[number])
        for number, name in enumerate(("in", "out", "err"))
    }
    for number, handle in opened.items():
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open until the process ends
        for number, mode in enumerate("rww")
    )
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if kinds[number] == CLOSED:
            os.close(number)
            setattr(sys, name, None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ |= {"COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
    os.chdir(folder)
    from paceline.cli.main import main

    sys.argv = ["paceline", *words]
    main()


def _opened(path: Path, number: int, kind: str) -> int:
    """Return a file descriptor for a stream: of a file, a pipe or a full device."""
    if kind == ABANDONED:
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open(kind if kind == FULL else path, os.O_WRONLY if number else os.O_RDONLY)
