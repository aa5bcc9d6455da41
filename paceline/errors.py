"""Define the exceptions of the package.

All errors derive from `PacelineError`; `ConfigError` is also a `ValueError`.

Every message states what happened, followed by the fix. Messages about a wrong value have the form
"NAME: got ...; expected ...". NUL characters enclose every setting that may be an option of a
command: "Pass \\0max_batch=1\\0." They cannot occur in command-line words or file names, or in text
shown by `repr`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PacelineError(Exception):
    """Base class of all errors that paceline raises.

    Attributes:
        parts: Message, split into text and settings; every second part is a setting, such as
            "max_batch", "max_batch=1" or "LLM: max_batch".
    """

    def __init__(self, message: str = "") -> None:
        self.parts = message.split("\0")
        super().__init__("".join(self.parts))


class ConfigError(PacelineError, ValueError):
    """Raised for an invalid argument, option or prompt, before any work starts."""


class BusyError(ConfigError):
    """Raised if the server is busy; the same request may succeed later."""


class UnsupportedModelError(PacelineError):
    """Raised for a model, cache or architecture that cannot be verified losslessly."""


class CapacityError(PacelineError):
    """Raised if a request exceeds the model's context or the KV cache."""


class DatastoreError(PacelineError):
    """Raised if a datastore is damaged, locked, or built with a different tokenizer."""


class LogitsError(PacelineError):
    """Raised if logits are NaN, or are infinite where a token must be chosen.

    Only the affected request ends.
    """


class DrafterError(PacelineError):
    """Raised if a drafter breaks its contract.

    The message names the drafter, the request and the rule.
    """


class ParallelError(PacelineError):
    """Raised if a process in a parallel run exits or does not respond in time."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return the closest match and the allowed names, to end an error message."""
    names = sorted(allowed)
    close = get_close_matches(word, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Expected one of: {', '.join(names) if names else 'none'}."
