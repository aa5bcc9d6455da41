"""Fixtures of a model and of a machine whose forward times a test sets."""

from __future__ import annotations

import pytest

from paceline import LLM
from paceline.model.cached_lm import CachedLM
from paceline.model.transformers_target import as_cached_lm
from tests.support.machine import Machine, line
from tests.support.shared import Pair


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, line(0.03))


@pytest.fixture
def model(pair: Pair) -> CachedLM:
    return as_cached_lm(LLM(pair.target, "none").model)
