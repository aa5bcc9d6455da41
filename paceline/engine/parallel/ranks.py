"""Connect the processes in a lookahead-parallel run.

The processes connect through torch.distributed and exchange small integer tensors. If one process
ends, all processes end.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
from collections.abc import Iterable
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.core.drafter import Drafter
from paceline.errors import ConfigError, ParallelError

_MINIMUM = torch.iinfo(torch.int64).min  # smaller than every value
_ADDRESS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """The processes in a parallel run; all must make the same calls in the same order.

    Args:
        timeout: Number of seconds to wait for a message from another process before the run fails;
            None uses the timeout of an existing process group.
        store: Key-value store through which the processes found each other, if `join` created the
            group.
    Attributes:
        rank: Index of this process.
        size: Number of processes.
    """

    def __init__(self, timeout: float | None = None, store: Any = None) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._limit = "in time" if timeout is None else f"within {timeout:g} s"
        self._store = store
        self._on_gpu = dist.get_backend() == "nccl"
        self._interrupted = False

    @staticmethod
    def join(device: str = "auto", timeout: float = 60.0) -> Ranks:
        """Join the existing process group, or create the one that torchrun configured.

        Args:
            device: Device of the model, as in `LLM`. The group uses NCCL on GPUs and gloo
                otherwise.
            timeout: Number of seconds to wait for the other processes.
        Raises:
            ConfigError: The process was not started by torchrun, or no GPU is available for it.
            ParallelError: The other processes did not connect in time.
        """
        if not dist.is_available():
            raise ConfigError(
                "lookahead parallelism needs torch.distributed, which this build of torch lacks."
                " Install another build."
            )
        if dist.is_initialized():
            return Ranks()
        missing = [name for name in _ADDRESS if name not in os.environ]
        if missing:
            raise ConfigError(
                "lookahead parallelism needs one process per copy of the model, and this one was"
                f" started alone ({missing[0]} is not set). Start all of them with: torchrun"
                " --nproc-per-node K -m paceline ..., or initialise torch.distributed first."
            )
        from torch.distributed.rendezvous import rendezvous  # missing in some torch builds

        options: dict[str, Any] = {"backend": "gloo", "timeout": timedelta(seconds=timeout)}
        target = torch.device(local_device(device))
        if target.type == "cuda":
            # With this setting, NCCL raises an error if a process is lost, instead of aborting.
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
            torch.cuda.set_device(target)
            options |= {"backend": "nccl", "device_id": target}
        try:
            store, rank, size = next(rendezvous("env://", timeout=options["timeout"]))
            dist.init_process_group(store=store, rank=rank, world_size=size, **options)
        except (RuntimeError, ValueError) as error:
            raise ParallelError(
                f"the processes of this parallel run did not find each other within {timeout:g} s:"
                f" {str(error).splitlines()[0]} Start all of them at once, with torchrun."
            ) from error
        atexit.register(_leave)
        ranks = Ranks(timeout, store)
        # Without torchrun, the store closes when rank 0 exits, so rank 0 waits until all ranks have
        # arrived.
        ranks.first(0)
        return ranks

    def merge(self, table: Tensor) -> Tensor:
        """Return the element-wise maximum of the tables on all ranks.

        Args:
            table: This rank's table, int64; the shape must be the same on all ranks.
        Raises:
            ParallelError: A process was lost.
            KeyboardInterrupt: A process was interrupted; raised in all processes.
        """
        flag = torch.tensor([int(self._interrupted)])
        buffer = torch.cat([flag, table.flatten()])
        buffer = buffer.cuda() if self._on_gpu else buffer
        try:
            dist.all_reduce(buffer, op=dist.ReduceOp.MAX)
            merged = buffer.cpu()
        except RuntimeError as error:
            raise ParallelError(
                f"a process of this parallel run ended or did not answer {self._limit}; all"
                f" {self.size} of them must run to the end. See that process's message, and start"
                " the run again."
            ) from error
        if merged[0]:
            # One Ctrl-C reaches the processes at different times.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._interrupted = False
            raise KeyboardInterrupt
        return merged[1:].view(table.shape)

    def gather(self, values: list[int]) -> list[list[int]]:
        """Return the lists of values from all ranks, in the order of the ranks.

        Args:
            values: This rank's values; all lists must have the same length.
        """
        table = torch.full((self.size, len(values)), _MINIMUM, dtype=torch.int64)
        table[self.rank] = torch.tensor(values, dtype=torch.int64)
        rows: list[list[int]] = self.merge(table).tolist()
        return rows

    def first(self, value: int) -> int:
        """Return rank 0's value, once every rank has made this call."""
        return self.gather([value])[0][0]

    def agree(self, what: str, value: object, advice: str) -> None:
        """Check that a value has the same `repr` on every rank.

        Args:
            what: Name of the value, for the message.
            value: This rank's value.
            advice: How to fix the difference; the last sentence of the message.
        Raises:
            ConfigError: The values differ. Raised on all ranks; the message names the ranks that
                differ from rank 0.
        """
        digests = [row[0] for row in self.gather([_digest(repr(value))])]
        others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise ConfigError(
                f"{what} of {_named(others)} differ from those of rank 0; all {self.size} ranks"
                f" must have the same. {advice}"
            )

    def hold_interrupts(self) -> None:
        """Delay Ctrl-C until the ranks next exchange data, so that all ranks end together.

        A second Ctrl-C ends this process immediately.
        """

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        signal.signal(signal.SIGINT, interrupt)

    def first_to_say(self, error: Exception) -> bool:
        """Return whether this rank is the first one to report an error.

        Args:
            error: Error to report; other ranks may report the same error.
        """
        if self._store is None:
            return True
        try:
            return int(self._store.add(f"paceline/said/{_digest(str(error))}", 1)) == 1
        # Without torchrun, the store closed when rank 0 exited. Rank 0 has reported the common
        # errors, so only the loss of a process remains to be reported.
        except RuntimeError:
            return isinstance(error, ParallelError)


def join_ranks(ranks: object, device: str) -> Ranks:
    """Return the ranks of a lookahead-parallel run, and connect them if needed.

    Args:
        ranks: True to connect the processes, or the `Ranks` object of connected processes.
        device: Device of the model, as in `LLM`.
    Raises:
        ConfigError: `ranks` is neither True nor a `Ranks` object, or the processes cannot be
            connected.
    """
    if ranks is True:
        return Ranks.join(device)
    if not isinstance(ranks, Ranks):
        raise ConfigError(
            f"\0lookahead_parallel\0: got {ranks!r}; expected True, False or a Ranks object."
        )
    return ranks


def check_columns(drafter: Drafter, size: int) -> None:
    """Check that a drafter's trees have enough branches for all ranks.

    Args:
        drafter: Drafter to check.
        size: Number of ranks.
    Raises:
        ConfigError: The trees cannot be divided, or there are more ranks than branches.
    """
    if drafter.columns < 2:
        raise ConfigError(
            f"lookahead parallelism: got drafter {drafter.name!r}, whose trees cannot be split"
            " among processes; expected a drafter with a window, such as 'lookahead:window=15'."
            " Choose one, or run in one process."
        )
    if drafter.top_k:
        raise ConfigError(
            f"lookahead parallelism: got drafter {drafter.name!r}, which asks for the target's"
            f" {drafter.top_k} most likely tokens after every node; expected one that needs the"
            " chosen token alone. Run it in one process."
        )
    if size > drafter.columns:
        raise ConfigError(
            f"lookahead parallelism: got {size} ranks for drafter {drafter.name!r}, whose window"
            f" has {drafter.columns} columns; expected 1 to {drafter.columns} ranks. Reduce"
            " --nproc-per-node, or raise window."
        )


def local_device(device: str) -> str:
    """Return the device of this process; on GPUs, the local rank selects the GPU.

    Args:
        device: The `device` argument of `LLM`.
    Raises:
        ConfigError: This machine runs more processes than it has GPUs.
    """
    if device not in ("auto", "cuda") or (device == "auto" and not torch.cuda.is_available()):
        return "cpu" if device == "auto" else device
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise ConfigError(
            f"got local rank {local}; expected less than {count}, the number of GPUs here,"
            " because each process needs its own GPU. Reduce --nproc-per-node, or use --device cpu."
        )
    return f"cuda:{local}"


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _named(ranks: Iterable[int]) -> str:
    *front, last = map(str, ranks)
    return f"ranks {', '.join(front)} and {last}" if front else f"rank {last}"


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
