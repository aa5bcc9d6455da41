"""Run command lines in forked processes.

Each process is forked from one that has imported everything, which saves seconds per command.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tests.support.processes import start_process


def run_command(
    *words: str,
    stdin: str = "",
    folder: Path | None = None,
    path: Sequence[Path] = (),
    seconds: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """Run `paceline ...`, `-m module ...` or `file.py ...` as a shell would.

    Args:
        words: Words of the command line.
        stdin: Text for standard input.
        folder: Working directory; default: the current one.
        path: Folders to search for modules after the working directory, as PYTHONPATH does.
        seconds: Time after which the process is killed.
    """
    with tempfile.TemporaryDirectory() as parent:
        streams = [Path(parent) / name for name in ("in", "out", "err")]
        streams[0].write_text(stdin, encoding="utf-8")
        process = start_process(_run, (words, streams, folder or Path.cwd(), list(path)))
        process.join(seconds)
        process.kill()
        process.join()
        out, err = (stream.read_text(encoding="utf-8") for stream in streams[1:])
    return subprocess.CompletedProcess(words, process.exitcode or 0, out, err)


def start_command(*words: str) -> BaseProcess:
    """Start `paceline ...` without output, to be killed or joined later."""
    return start_process(_run, (words, [Path(os.devnull)] * 3, Path.cwd(), []))


def _run(words: Sequence[str], streams: Sequence[Path], folder: Path, path: Sequence[Path]) -> None:
    for number, (stream, mode) in enumerate(
        zip(streams, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)
    ):
        os.dup2(os.open(stream, mode), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open until the process ends
    os.environ |= {"COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
    os.chdir(folder)
    torch.set_num_threads(1)
    _start(words, [str(folder), *map(str, path)])


def _start(words: Sequence[str], path: list[str]) -> Any:
    sys.path[:0] = path
    if words[0] == "paceline":
        from paceline.cli.main import main

        sys.argv = list(words)
        return main()
    if words[0] == "-m":
        sys.argv = list(words[1:])
        return runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    sys.argv = list(words)
    return runpy.run_path(words[0], run_name="__main__")
