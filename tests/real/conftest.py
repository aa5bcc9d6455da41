"""Fixture of SmolLM2, loaded once."""

from __future__ import annotations

import pytest

from tests.support.real import Real, load_real


@pytest.fixture(scope="session")
def real(converted_smollm2: None) -> Real:
    """Load SmolLM2 in float32."""
    return load_real()
