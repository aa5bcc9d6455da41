"""The `paceline` command, put together."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence as ListLike
from typing import get_args

from cyclopts import App, ArgumentCollection, CycloptsError
from cyclopts.exceptions import CoercionError

from paceline import __version__
from paceline.cli.bench import bench
from paceline.cli.cache import cache
from paceline.cli.datastore import datastore
from paceline.cli.demo import run_demo
from paceline.cli.doctor import doctor
from paceline.cli.drafters import drafters
from paceline.cli.generate import chat, generate
from paceline.cli.head import head
from paceline.cli.options import DEFAULTS
from paceline.cli.paper import paper
from paceline.cli.parallel import prints_for_all
from paceline.cli.plan import plan
from paceline.cli.record import record
from paceline.cli.replay import replay
from paceline.cli.show import print_error
from paceline.cli.verify import verify
from paceline.errors import PacelineError


def _refuse_fractions(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse 2.5 where a whole number is expected; cyclopts would round it."""
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(argument=argument, token=token, target_type=int)


app = App(
    name="paceline", help="Lossless speculative decoding: the same answers from the same weights, sooner.", version=__version__,
    default_parameter=DEFAULTS, config=_refuse_fractions, help_format="plaintext", exit_on_error=False, print_error=False,
)  # fmt: skip
for command in (generate, chat, bench, paper, record, replay, datastore, head, drafters, cache, verify, doctor, plan):
    app.command(command)
app.command(run_demo, name="demo")


class _Word(str):
    """A command-line word; a lone hyphen is not the beginning of an option, as cyclopts would have it, but a value."""

    __slots__ = ()

    def startswith(self, *arguments: object) -> bool:
        return self != "-" and super().startswith(*arguments)  # type: ignore[arg-type]


def run(words: ListLike[str]) -> int:
    """Run a command line, and return its exit status.

    Raises:
        SystemExit: the command line cannot be read; what is wrong has been said.
        PacelineError: the command cannot do what was asked.
    """
    try:
        command, bound, _ = app.parse_args(map(_Word, words))
    except (CycloptsError, PacelineError) as error:
        if prints_for_all(words):
            print_error(_sentence(error))
        sys.exit(2)
    return command(*bound.args, **bound.kwargs) or 0


def main() -> None:
    """Entry point: errors of ours are one line and exit status 2, Ctrl-C is 130, a closed pipe is silent."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except PacelineError as error:
        print_error(error)
        status = 2
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)


def _sentence(error: Exception) -> str:
    """Return what is wrong with a command line, in one line."""
    if isinstance(error, CoercionError) and error.token is not None and error.token.keyword and error.msg is None:
        expected = getattr(error.target_type, "__name__", str(error.target_type))
        return f"{error.token.keyword}: got {error.token.value!r}; expected {expected}."
    return " ".join(str(error).split())
