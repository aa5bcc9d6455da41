"""Values of sampling parameters: what is allowed, in the one form they are kept in."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any

from paceline.errors import ConfigError
from paceline.text.tokens import is_text

MOST_BIAS = 100.0
MOST_PENALTY = 2.0

_TEXTS = (str, bytes, bytearray, Mapping)


def is_int(value: object) -> bool:
    """Whether it is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def require(fine: bool, name: str, value: object, expected: str) -> None:
    """Refuse a value that is not fine.

    Raises:
        ConfigError: naming what is expected.
    """
    if not fine:
        raise ConfigError(f"{name}: got {value!r}; expected {expected}.")


def stop_strings(value: object) -> tuple[str, ...]:
    """Return stop strings given as one, several or None."""
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
    """Return the token ids that end an answer, given as one, several or None."""
    listed = () if value is None else (value,) if _is_id(value) else value
    ids = _ids(listed)
    require(ids is not None, "stop_token_ids", value, "token ids of at least 0, or None")
    return ids or ()


def logit_bias(value: Any) -> dict[int, float] | None:
    """Return what is added to the logits of single tokens, by token id; None where there is
    nothing.
    """
    pairs = {} if value is None else value
    fine = isinstance(pairs, Mapping) and all(
        _is_id(token) and is_number(bias) and abs(bias) <= MOST_BIAS
        for token, bias in pairs.items()
    )
    expected = (
        f"token ids with numbers from {-MOST_BIAS:g} to {MOST_BIAS:g}, such as {{42: -5.0}}, or"
        " None"
    )
    require(fine, "logit_bias", value, expected)
    return {operator.index(token): float(bias) for token, bias in pairs.items()} or None


def bad_words(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return what an answer must not contain: words, and sequences of token ids."""
    expected = "a list of words or of lists of token ids, or None"
    require(
        value is None or (isinstance(value, Iterable) and not isinstance(value, _TEXTS)),
        "bad_words",
        value,
        expected,
    )
    found: list[str | tuple[int, ...]] = []
    for one in value or ():
        ids = None if isinstance(one, str) else _ids(one)
        require(
            is_text(one) and bool(one.strip()) if isinstance(one, str) else bool(ids),
            "bad_words",
            value,
            expected,
        )
        found.append(one if ids is None else ids)
    return tuple(found)


def logits_processors(value: Any) -> tuple[Callable[..., Any], ...]:
    """Return the processors, given as one, several or None."""
    listed = (
        ()
        if value is None
        else (value,)
        if callable(value) and not isinstance(value, Iterable)
        else value
    )
    fine = isinstance(listed, Iterable) and not isinstance(listed, _TEXTS)
    found = tuple(listed) if fine else ()
    expected = "callables (ids, scores) -> scores, as transformers' LogitsProcessor, or None"
    require(fine and all(map(callable, found)), "logits_processors", value, expected)
    return found


def _is_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _ids(value: Any) -> tuple[int, ...] | None:
    """Token ids of a list, array or tensor; None where it is none of them."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, Iterable) or isinstance(listed, _TEXTS):
        return None
    ids = tuple(listed)
    return tuple(map(operator.index, ids)) if all(map(_is_id, ids)) else None
