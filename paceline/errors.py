"""Define the exceptions of the package.

All errors derive from `PacelineError`; `ConfigError` is also a `ValueError`. Each class states when
it is raised.

Every message says what happened and then the fix. Messages about a wrong value have the form "NAME:
got ...; expected ...".
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PacelineError(Exception):
    """Base class of all errors that this package raises on purpose."""


class ConfigError(PacelineError, ValueError):
    """Raised for an invalid argument, option or prompt, before any work starts."""


class BusyError(ConfigError):
    """Raised if the request may succeed later, when fewer resources are in use."""


class UnsupportedModelError(PacelineError):
    """Raised for a model, cache or architecture that cannot be verified losslessly."""


class CapacityError(PacelineError):
    """Raised if a request exceeds the model's context or the KV cache."""


class DatastoreError(PacelineError):
    """Raised for a datastore that is damaged, locked or of another tokenizer."""


class LogitsError(PacelineError):
    """Raised for logits that are NaN, or infinite where a token is chosen.

    Only the request that needs them ends.
    """


class DrafterError(PacelineError):
    """Raised if a drafter breaks its contract; names the drafter, request and rule."""


class ParallelError(PacelineError):
    """Raised if a process of a parallel run ends or does not answer in time."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: close match and allowed names."""
    names = sorted(allowed)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Expected one of: {', '.join(names) if names else 'none'}."
