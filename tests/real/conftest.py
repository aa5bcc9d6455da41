"""The real model, loaded once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.model import gguf
from paceline.util import cache
from tests.support.real import Real, load_real


@pytest.fixture(scope="session")
def real(pytestconfig: pytest.Config) -> Real:
    """SmolLM2 in float32. Its converted checkpoint outlives the session, in pytest's cache."""
    if pytestconfig.cache is not None:
        with suppress(FileExistsError):  # another process made it
            link = Path(os.environ[cache.VARIABLE]) / gguf.KIND
            link.symlink_to(pytestconfig.cache.mkdir("smollm2"))
    return load_real()
