"""Run a command in several processes under torchrun; only rank 0 prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from paceline.errors import ConfigError, PacelineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.cli.options import ParallelOptions
    from paceline.engine.parallel.ranks import Ranks


@contextmanager
def joined_ranks(options: ParallelOptions, device: str) -> Iterator[Ranks | None]:
    """Join the processes of a parallel run; yield None if the run is not parallel.

    Only rank 0 prints output. The first process that encounters an error prints it.
    """
    if not options.lookahead_parallel:
        yield None
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # paceline reports a lost process itself
    from paceline.engine.parallel.ranks import Ranks

    ranks = Ranks.join(device, options.process_timeout)
    try:
        with ExitStack() as silence:
            if ranks.rank:
                nowhere = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
                silence.enter_context(redirect_stdout(nowhere))
                silence.enter_context(redirect_stderr(nowhere))
            ranks.hold_interrupts()
            yield ranks
    except PacelineError as error:
        if not ranks.first_to_say(error):
            sys.exit(2)
        raise
    except KeyboardInterrupt:
        if ranks.rank:
            sys.exit(130)
        raise


def prints_for_all(words: Sequence[str]) -> bool:
    """Return whether this process prints the command-line errors of all processes."""
    return "--lookahead-parallel" not in words or os.environ.get("RANK", "0") == "0"


def refuse_standard_input(parallel: bool, prompts: Sequence[str]) -> None:
    """Reject a prompt from standard input in a parallel run.

    Raises:
        ConfigError: A prompt is "-". Only one of the processes could read standard input.
    """
    if parallel and "-" in prompts:
        raise ConfigError(
            "'-' reads from standard input, which only one of the processes could read. Pass the"
            " prompt itself."
        )
