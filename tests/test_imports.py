"""What needs no torch imports none (who may import whom is held by import-linter), and the public names are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


LIGHT = [
    *("paceline", "paceline.cli.main", "paceline.replay", "paceline.datastore", "paceline.plan.named"),
    *(f"paceline.engine.{name}" for name in ("tree", "sequence", "drafter")),
    *(f"paceline.drafters.{name}" for name in ("scripted", "prompt_lookup", "rest.drafter", "pia.drafter", "sssd.drafter")),
]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_need_no_torch(module: str) -> None:
    code = f"import {module}, sys; assert not {{'torch', 'transformers'}} & set(sys.modules), 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_drafters_are_listed_and_built_without_torch() -> None:
    """The registry imports a drafter's module when it is chosen, not before."""
    code = """
import sys
from paceline.drafters import available, create
assert "draft_model" in available()
assert create("prompt_lookup:length=3").name == "prompt_lookup"
assert create("sssd").name == "sssd"
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_public_names() -> None:
    import paceline

    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        paceline.nothing  # noqa: B018
