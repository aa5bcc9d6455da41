"""Validate and normalise sampling parameters."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any

from paceline.core.settings import MAX_LOGIT_BIAS
from paceline.errors import ConfigError
from paceline.util.unicode import is_text

_TEXTS = (str, bytes, bytearray, Mapping)


def is_int(value: object) -> bool:
    """Return whether a value is an integer but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a finite number but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Return whether a value is an integer of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_within(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether a value is a finite number from `low` to `high`, inclusive."""
    return isinstance(value, int | float) and is_number(value) and low <= value <= high


def require(valid: bool, name: str, value: object, expected: str) -> None:
    """Raise an error that names the parameter if its value is invalid.

    Args:
        valid: Whether the value is valid.
        name: Name of the parameter.
        value: Value of the parameter.
        expected: Description of valid values.
    Raises:
        ConfigError: `valid` is False.
    """
    if not valid:
        raise ConfigError(f"\0{name}\0: got {value!r}; expected {expected}.")


def stop_strings(value: object) -> tuple[str, ...]:
    """Return stop strings as a tuple; a single string or None is also accepted."""
    if value is None or isinstance(value, str):
        value = () if value is None else (value,)
    texts = (
        tuple(value)
        if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes)
        else (value,)
    )
    require(
        all(is_text(text) and text for text in texts), "stop", value, "non-empty strings, or None"
    )
    return texts


def stop_token_ids(value: Any) -> tuple[int, ...]:
    """Return stop token ids as a tuple; a single id or None is also accepted."""
    listed = () if value is None else (value,) if _is_id(value) else value
    ids = _ids(listed)
    require(ids is not None, "stop_token_ids", value, "token ids of at least 0, or None")
    return ids or ()


def prediction(value: Any) -> str | tuple[int, ...]:
    """Return a predicted text unchanged, or predicted token ids as a tuple."""
    if isinstance(value, str):
        require(is_text(value), "prediction", value[:60], "text in UTF-8")
        return value
    ids = _ids(() if value is None else value)
    require(ids is not None, "prediction", value, "text, or token ids of at least 0")
    return ids or ()


def logit_bias(value: Any) -> dict[int, float] | None:
    """Return a logit bias as a dictionary from token id to value; None if empty."""
    pairs = {} if value is None else value
    valid = isinstance(pairs, Mapping) and all(
        _is_id(token) and is_number(bias) and abs(bias) <= MAX_LOGIT_BIAS
        for token, bias in pairs.items()
    )
    expected = (
        f"token ids with numbers from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}, such as"
        " {42: -5.0}, or None"
    )
    require(valid, "logit_bias", value, expected)
    return {operator.index(token): float(bias) for token, bias in pairs.items()} or None


def bad_words(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return the words and token-id sequences that an answer must not contain."""
    expected = "a list of words or of lists of token ids, or None"
    require(
        value is None or (isinstance(value, Iterable) and not isinstance(value, _TEXTS)),
        "bad_words",
        value,
        expected,
    )
    entries: list[str | tuple[int, ...]] = []
    for entry in value or ():
        ids = None if isinstance(entry, str) else _ids(entry)
        valid = is_text(entry) and bool(entry.strip()) if isinstance(entry, str) else bool(ids)
        require(valid, "bad_words", value, expected)
        entries.append(entry if ids is None else ids)
    return tuple(entries)


def logits_processors(value: Any) -> tuple[Callable[..., Any], ...]:
    """Return logits processors as a tuple; one processor or None is also accepted."""
    listed = (
        ()
        if value is None
        else (value,)
        if callable(value) and not isinstance(value, Iterable)
        else value
    )
    valid = isinstance(listed, Iterable) and not isinstance(listed, _TEXTS)
    processors = tuple(listed) if valid else ()
    expected = "callables (ids, scores) -> scores, as transformers' LogitsProcessor, or None"
    require(valid and all(map(callable, processors)), "logits_processors", value, expected)
    return processors


def _is_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _ids(value: Any) -> tuple[int, ...] | None:
    """Return the token ids in a list, array or tensor; None for any other value."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, Iterable) or isinstance(listed, _TEXTS):
        return None
    ids = tuple(listed)
    return tuple(map(operator.index, ids)) if all(map(_is_id, ids)) else None
