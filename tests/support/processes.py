"""Start processes, singly or in groups as torchrun does.

Most are forked from a server process that has imported everything.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

# `paceline` sets these before it imports libraries; here the libraries are already imported.
os.environ |= {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TQDM_DISABLE": "1",
}
_CONTEXT = multiprocessing.get_context("forkserver")
# Nearly every command imports these modules, which takes three seconds per process.
_CONTEXT.set_forkserver_preload(
    [
        "paceline.bench.run",
        "paceline.cli.generate",
        "paceline.cli.main",
        "paceline.cpu.backend",
        "paceline.engine.target_setup",
        "transformers.models.llama.modeling_llama",
    ]
)


def start_process(
    target: Callable[..., Any], args: Sequence[Any], daemon: bool = False
) -> BaseProcess:
    """Start a process that is forked from the server.

    The readline module sets the terminal's size below Python. Consoles that the server makes at
    import would keep that size.
    """
    os.unsetenv("COLUMNS")
    os.unsetenv("LINES")
    process = _CONTEXT.Process(target=target, args=tuple(args), daemon=daemon)
    process.start()
    return process


class Group:
    """Group of `size` processes that run `work(*args)`.

    Rank r writes to the files r.out and r.err in `folder`.
    """

    def __init__(self, size: int, folder: Path, work: Callable[..., Any], *args: Any) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.processes = [
            start_process(_run, (rank, size, port, folder, work, args), daemon=True)
            for rank in range(size)
        ]

    def wait(self, seconds: float = 60.0) -> list[int | None]:
        """Return the exit codes in rank order.

        A process that still runs after `seconds` is killed; its code is None.
        """
        for process in self.processes:
            process.join(seconds)
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        return codes

    def printed(self, rank: int) -> str:
        """Return the standard output of a rank so far."""
        return (self.folder / f"{rank}.out").read_text()

    def errors(self) -> list[str]:
        """Return the non-empty lines on standard error of all ranks."""
        texts = [(self.folder / f"{rank}.err").read_text() for rank in range(len(self.processes))]
        return [line for text in texts for line in text.splitlines() if line.strip()]


def command(*words: str) -> None:
    """Run `paceline WORDS`."""
    from paceline.cli.main import main

    sys.argv = ["paceline", *words]
    main()


def exit_during_generation(llm: str) -> None:
    """Run a process that exits during a generation.

    Args:
        llm: Python expression for the engine.
    """
    code = (
        "from paceline import LLM, SamplingParams, demo\n"
        f"llm = {llm}\n"
        "prompt = llm.chat_prompt([{'role': 'user', 'content': 'Count to ten.'}])\n"
        "stream = llm.stream(prompt, SamplingParams(max_new_tokens=30))\n"
        "next(stream)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], env=environment
    )


def _run(
    rank: int, size: int, port: int, folder: Path, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "COLUMNS": "500",
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    for number, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    torch.set_num_threads(1)
    work(*args)
