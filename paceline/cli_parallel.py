"""How a command runs in several processes under torchrun: rank 0 speaks for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import typer

from paceline.errors import ConfigError, PacelineError

if TYPE_CHECKING:
    from paceline.parallel_ranks import Ranks


@contextmanager
def one_voice(parallel: bool, device: str, timeout: float) -> Iterator[Ranks | None]:
    """Join the processes of a parallel run, None without one. Only rank 0 prints; an error is printed by the first to meet it."""
    if not parallel:
        yield None
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost process is reported in our words, not with C++ stacks
    from paceline.parallel_ranks import Ranks

    ranks = Ranks.join(device, timeout)
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
            raise typer.Exit(2) from error
        raise
    except KeyboardInterrupt:
        if ranks.rank:
            raise typer.Exit(130) from None
        raise


def refuse_standard_input(parallel: bool, prompts: list[str]) -> None:
    """Only one process could read it.

    Raises:
        ConfigError: a prompt is to come from standard input.
    """
    if parallel and "-" in prompts:
        raise ConfigError("'-' reads a prompt from standard input, which only one process can; pass the prompt itself.")
