"""Build the `paceline` command, and run a command line."""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import get_args

from cyclopts import App, ArgumentCollection, CycloptsError, Group
from cyclopts.exceptions import CoercionError

from paceline import __version__
from paceline.cli.commands import COMMANDS, GROUPS, command_path
from paceline.cli.help import HelpFormatter
from paceline.cli.model_option import with_model_first
from paceline.cli.option_names import with_option_names
from paceline.cli.options import DEFAULTS, UNGROUPED
from paceline.cli.parallel import prints_for_all
from paceline.cli.parse_errors import parse_error_text
from paceline.cli.show import INTERRUPTED, print_error, print_note
from paceline.errors import PacelineError
from paceline.util.compilation import on_first_compilation
from paceline.util.frame_memory import call_with_frame_memory
from paceline.util.machine import usable_cores
from paceline.util.options import ModelOptions
from paceline.util.plurals import counted
from paceline.util.util_settings import YOUNG_OBJECTS

# paceline prints its own notes
_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(=|$)")
_HELP = ("--help", "-h")
_FAILED, _BROKEN_PIPE = 2, 141  # exit statuses


def _refuse_fractions(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Reject a fraction where an integer is expected; cyclopts would round it."""
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(argument=argument, token=token, target_type=int)


def new_app(name: str, help_text: str) -> App:
    """Return an application that parses options as `paceline` does, without commands.

    Args:
        name: Name of the program, for its help.
        help_text: First line of the program's help.
    """
    app = App(
        name=name,
        help=help_text,
        version=__version__,
        default_parameter=DEFAULTS,
        config=_refuse_fractions,
        help_format="plaintext",
        group_parameters=UNGROUPED,
        exit_on_error=False,
        print_error=False,
    )
    app.help_formatter = HelpFormatter(app)
    return app


def _build_app(listed: bool) -> App:
    """Return the application with all commands.

    Args:
        listed: Whether to show the help texts in `COMMANDS`, instead of importing the commands.
    """
    app = new_app(
        "paceline",
        "Lossless speculative decoding: the same answers from the same weights, faster.",
    )
    for number, (title, names) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=number)
        for order, name in enumerate(names):
            app.command(
                command_path(name),
                name=name,
                help=COMMANDS[name] if listed else None,
                group=group,
                sort_key=order,
            )
    last = Group("Options", sort_key=len(GROUPS))
    app["--help"].group = app["--version"].group = last
    app["--help"].help = "Show this help; after a command, the help of that command."
    app["--version"].help = "Show the version."
    return app


app = _build_app(listed=False)


class _Word(str):
    """A command-line word that is an option only if a letter follows its hyphens.

    Words such as "-", "-5 degrees" or "-> x" are therefore values.
    """

    __slots__ = ()

    def startswith(self, *arguments: object) -> bool:
        is_value = super().startswith("-") and self != "--" and _OPTION.match(self) is None
        return not is_value and super().startswith(*arguments)  # type: ignore[arg-type]


def run(words: Sequence[str], program: App | None = None) -> int:
    """Run a command line, and return its exit status.

    Args:
        words: Command-line words after the program's name.
        program: Application from `new_app`. Default: `paceline`.
    Raises:
        SystemExit: The command line is invalid. The error has already been printed.
        PacelineError: The command failed.
    """
    selected = program
    if selected is None:
        selected = app if words and words[0] not in _HELP else _build_app(listed=True)
    ordered = list(words)
    try:
        ordered = with_model_first(selected, [_Word(word) for word in words])
        command, bound, _ = selected.parse_args(map(_Word, ordered))
    except (CycloptsError, PacelineError) as error:
        if prints_for_all(words):
            print_error(
                with_option_names(error, selected, words)
                if isinstance(error, PacelineError)
                else parse_error_text(
                    error, selected.name[0], has_model_option=ordered != list(words)
                )
            )
        sys.exit(_FAILED)
    _note_excess_threads(bound.arguments.values())
    try:
        return command(*bound.args, **bound.kwargs) or 0
    except PacelineError as error:
        error.args = (with_option_names(error, selected, words),)
        raise


def _note_excess_threads(arguments: Iterable[object]) -> None:
    """Print a note if --threads exceeds the number of usable processors."""
    for argument in arguments:
        models = getattr(argument, "models", argument)
        if isinstance(models, ModelOptions) and (models.threads or 0) > usable_cores():
            processors = counted(usable_cores(), "processor")
            print_note(
                f"warning: --threads {models.threads} exceeds the {processors} of this process;"
                " more threads than processors slow the model down"
            )


def main() -> None:
    """Run the command line of this process, and exit.

    On an error, the process prints one line and exits with status 2. On Ctrl-C, the process exits
    with status 130. If an output pipe is closed, the process exits silently. Before the process
    compiles kernels, it prints one line.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    gc.set_threshold(YOUNG_OBJECTS)
    _prepare_streams()
    on_first_compilation(print_note)
    status = call_with_frame_memory(lambda: _status(sys.argv[1:]))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # already reported; Python would flush again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def _status(words: Sequence[str]) -> int:
    """Run a command line, print any error as one line, and return the exit status."""
    try:
        try:
            return run(words)
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich turns it into SystemExit(1)
            return _BROKEN_PIPE
        return end.code if isinstance(end.code, int) else _FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _BROKEN_PIPE
    except PacelineError as error:
        print_error(error)
    except OSError as error:  # for example, a full disk or missing permissions
        where = "" if error.filename is None else f"{error.filename}: "
        print_error(f"{where}{error.strerror or error}")
    except MemoryError:
        print_error("out of memory. Choose a smaller model, batch or context.")
    return _FAILED


def _prepare_streams() -> None:
    """Open missing standard streams as the null device; escape unprintable characters."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # else the next opened file would get this number
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None and number:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace", newline="")
