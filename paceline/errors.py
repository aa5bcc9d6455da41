"""Exceptions.

    PacelineError
    |- ConfigError (also ValueError)   an unusable argument, option or prompt
    |- UnsupportedModelError           a model that cannot be verified losslessly
    |- CapacityError                   a sequence that does not fit the context or the cache
    |- DatastoreError                  a damaged or locked store, or one of another tokenizer
    |- LogitsError                     logits of a model that are not numbers
    |- DrafterError                    a drafter that broke the contract of `paceline.core.drafter`
    `- ParallelError                   a process of a parallel run that was lost

Every message says what came, what is expected, and what to do: "NAME: got ...; expected .... Do
...".
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PacelineError(Exception):
    """Base class of every error this package raises on purpose."""


class ConfigError(PacelineError, ValueError):
    """An argument, option or prompt that cannot be used. Raised before any work starts."""


class BusyError(ConfigError):
    """What could be used if less were in use; the same request can be right later."""


class UnsupportedModelError(PacelineError):
    """A model, cache or architecture whose verification cannot be lossless."""


class CapacityError(PacelineError):
    """A sequence that does not fit the model's context or the cache."""


class DatastoreError(PacelineError):
    """A token store that is damaged, locked, or built with another tokenizer."""


class LogitsError(PacelineError):
    """Logits that are not numbers: NaN, or infinite where a token is chosen. It ends the request
    that needs them.
    """


class DrafterError(PacelineError):
    """A drafter broke the contract; the message names the drafter, the sequence and the rule."""


class ParallelError(PacelineError):
    """A process of a parallel run ended, or did not answer in time; the others cannot go on."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the close match, if any, and what is allowed."""
    names = sorted(allowed)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Expected one of: {', '.join(names) if names else 'none'}."
