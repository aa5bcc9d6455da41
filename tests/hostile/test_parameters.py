"""Test that invalid sampling parameters raise a typed error in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from paceline import SamplingParams
from paceline.errors import PacelineError

pytestmark = pytest.mark.hostile
NAN, INF = math.nan, math.inf
PARAMS: list[dict[str, Any]] = [
    {"max_new_tokens": bad} for bad in (-1, 1.0, 1.5, "4", None, True, NAN, [4], b"4", 1j)
] + [
    {"temperature": bad} for bad in (-1, -1e-9, NAN, INF, "1", None, True, 1j, [1.0])
] + [
    {"top_k": bad} for bad in (-1, 1.5, "3", None, True, NAN)
] + [
    {"top_p": bad} for bad in (0, -0.1, 1.0001, NAN, INF, "1", None, True)
] + [
    {"min_p": bad} for bad in (-0.1, 1.1, NAN, "0", None)
] + [
    {"repetition_penalty": bad} for bad in (0, -1, NAN, INF, "1", None)
] + [
    {"seed": bad} for bad in (0.5, "0", None, True, NAN)
] + [
    {"stop": bad} for bad in ("", ("a", ""), (3,), 3, b"x", {"a": 1}, ("\ud800",), [None], [["a"]])
] + [
    {"ignore_eos": bad} for bad in (0, 1, "no", None)
] + [
    {"speculation": bad} for bad in ("", " ", 3, b"none", ["none"])
] + [
    {"max_nodes": bad} for bad in (-1, 1.5, "3", True)
]  # fmt: skip


def check_refused(act: Callable[[], Any]) -> None:
    """Fail unless a call raises an error of the package in one line."""
    with pytest.raises(PacelineError) as error:
        act()
    assert str(error.value).strip()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1500


@pytest.mark.parametrize("options", PARAMS, ids=str)
def test_invalid_parameters_are_refused(options: dict[str, Any]) -> None:
    check_refused(lambda: SamplingParams(**options))
