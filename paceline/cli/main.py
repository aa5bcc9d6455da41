"""The `paceline` command, put together."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import get_args

from cyclopts import App, ArgumentCollection, CycloptsError, Group
from cyclopts.exceptions import CoercionError, MissingArgumentError

from paceline import __version__
from paceline.cli.commands import COMMANDS, GROUPS, place
from paceline.cli.options import DEFAULTS
from paceline.cli.parallel import prints_for_all
from paceline.cli.show import INTERRUPTED, print_error
from paceline.errors import PacelineError

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}  # what concerns users, we say ourselves
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(=|$)")
_HELP = ("--help", "-h")
_FAILED, _NOBODY_READS = 2, 141


def _refuse_fractions(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse 2.5 where a whole number is expected; cyclopts would round it."""
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(argument=argument, token=token, target_type=int)


def _put_together(listed: bool) -> App:
    """Return the command. Its parts are imported when they are asked for; `listed`: never, as
    their first lines will do.
    """
    made = App(
        name="paceline",
        help="Lossless speculative decoding: the same answers from the same weights, sooner.",
        version=__version__,
        default_parameter=DEFAULTS,
        config=_refuse_fractions,
        help_format="plaintext",
        exit_on_error=False,
        print_error=False,
    )
    for number, (title, names) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=number)
        for order, name in enumerate(names):
            made.command(
                place(name),
                name=name,
                help=COMMANDS[name] if listed else None,
                group=group,
                sort_key=order,
            )
    return made


app = _put_together(listed=False)


class _Word(str):
    """A command-line word; what no option is called like ("-", "-5 degrees", "-> x") is a value,
    and not taken for one.
    """

    __slots__ = ()

    def startswith(self, *arguments: object) -> bool:
        is_value = super().startswith("-") and self != "--" and _OPTION.match(self) is None
        return not is_value and super().startswith(*arguments)  # type: ignore[arg-type]


def run(words: Sequence[str]) -> int:
    """Run a command line, and return its exit status.

    Raises:
        SystemExit: the command line cannot be read; what is wrong has been said.
        PacelineError: the command cannot do what was asked.
    """
    asked = app if words and words[0] not in _HELP else _put_together(listed=True)
    try:
        command, bound, _ = asked.parse_args(map(_Word, words))
    except (CycloptsError, PacelineError) as error:
        if prints_for_all(words):
            print_error(_sentence(error))
        sys.exit(_FAILED)
    return command(*bound.args, **bound.kwargs) or 0


def main() -> None:
    """Entry point: what goes wrong is one line and exit status 2, Ctrl-C is 130, a closed pipe
    is silent.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    _prepare_streams()
    status = _status(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # said before; what is left would be tried again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def _status(words: Sequence[str]) -> int:
    """Run a command line; say in one line what stopped it."""
    try:
        try:
            return run(words)
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # which rich makes an end with status 1
            return _NOBODY_READS
        return end.code if isinstance(end.code, int) else _FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _NOBODY_READS
    except PacelineError as error:
        print_error(error)
    except OSError as error:  # a full disk, no rights: the system's words
        where = "" if error.filename is None else f"{error.filename}: "
        print_error(f"{where}{error.strerror or error}")
    except MemoryError:
        print_error(
            "got too little memory; expected more. Choose a smaller model, batch or context."
        )
    return _FAILED


def _prepare_streams() -> None:
    """Make standard streams that can be written: what a terminal cannot show is escaped, what
    was closed leads nowhere.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # or the first file that is opened would be taken for it
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None and number:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace", newline="")


def _sentence(error: Exception) -> str:
    """Return what is wrong with a command line, in one line."""
    if (
        isinstance(error, CoercionError)
        and error.token is not None
        and error.token.keyword
        and error.msg is None
    ):
        expected = getattr(error.target_type, "__name__", str(error.target_type))
        return f"{error.token.keyword}: got {error.token.value!r}; expected {expected}."
    text = " ".join(str(error).split())
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return text
    if error.keyword or any(
        token.keyword for token in error.argument.tokens
    ):  # the option is there, its value is not
        return f"{text} A value that begins with '-' is written --option=VALUE."
    command = " ".join(error.command_chain or ())
    return (
        f"{command}: got no {error.argument.name}; expected one. Give it; see paceline {command}"
        " --help."
    )
