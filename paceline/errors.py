"""Define the exceptions that paceline raises.

All exceptions derive from `PacelineError`; `ConfigError` is also a `ValueError`.

Every message states what happened, followed by the fix. Messages about a wrong value have the form
"NAME: got ...; expected ...". NUL characters surround each setting that can also be a command-line
option, as in "Pass \\0max_batch=1\\0". NUL is a safe marker, because command-line arguments, file
names and the output of `repr` cannot contain NUL.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PacelineError(Exception):
    """Base class of all errors that paceline raises.

    Attributes:
        parts: Message, split at the settings that it mentions. Every second entry is a setting,
            such as "max_batch", "max_batch=1" or "LLM: max_batch"; the others are text.
    """

    def __init__(self, message: str = "") -> None:
        self.parts = message.split("\0")
        super().__init__("".join(self.parts))


class ConfigError(PacelineError, ValueError):
    """Raised for an invalid argument, option or prompt, before any work starts."""


class BusyError(ConfigError):
    """Raised if the engine is too busy for a request, which may succeed later."""


class UnsupportedModelError(PacelineError):
    """Raised if a model cannot run, or if drafts would change its answers."""


class CapacityError(PacelineError):
    """Raised if the model's context or the KV cache is too small."""


class DatastoreError(PacelineError):
    """Raised if a datastore is damaged, locked, or built with a different tokenizer."""


class LogitsError(PacelineError):
    """Raised if no token can be chosen because logits are NaN or infinite.

    Only the affected request ends.
    """


class DrafterError(PacelineError):
    """Raised if a drafter violates the rules of the drafter interface.

    The message names the violated rule.
    """


class ParallelError(PacelineError):
    """Raised if a process in a parallel run exits or does not respond in time."""


def install_command(extra: str) -> str:
    """Return text that tells the user how to install an extra.

    The command installs from a clone, because the package is not on PyPI or any other index.

    Args:
        extra: Name of the extra, such as "serve".
    """
    return f"pip install '.[{extra}]' in a clone of paceline"


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name.

    The text suggests the closest match, and lists the allowed names.

    Args:
        word: Unknown name.
        allowed: Names that would have been valid.
    """
    names = sorted(allowed)
    close = get_close_matches(word, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Expected one of: {', '.join(names) if names else 'none'}."
