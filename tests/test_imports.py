"""Test that light modules import no torch, and that the public names exist."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.util.garbage_collection import collection_paused, survivors_exempt

ROOT = Path(__file__).parent.parent


LIGHT = [
    *("paceline", "paceline.cli.main", "paceline.replay", "paceline.datastore"),
    *(f"paceline.core.{name}" for name in ("tree", "request", "drafter")),
    *(
        f"paceline.drafters.{name}"
        for name in ("scripted", "prompt_lookup", "rest.drafter", "pia.drafter", "sssd.drafter")
    ),
]


def test_light_modules_need_no_torch() -> None:
    """Modules are imported one by one, so that the failing one is named.

    The module of a drafter is imported when it is selected.
    """
    code = f"""
import importlib, sys
def check(what):
    assert not {{"torch", "transformers"}} & set(sys.modules), f"torch was imported by {{what}}"
for name in {LIGHT}:
    importlib.import_module(name)
    check(name)
from paceline.drafters import available, create
assert "draft_model" in available()
for spec in ("prompt_lookup:max_draft_tokens=3", "sssd"):
    assert create(spec).name == spec.partition(":")[0]
    check(spec)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def _fail_paused() -> None:
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled(), "the outer context still pauses it"
        raise ImportError


def test_imports_pause_the_garbage_collector() -> None:
    assert gc.isenabled()
    with pytest.raises(ImportError):
        _fail_paused()
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled(), "the caller has disabled it"
    finally:
        gc.enable()


def test_objects_exempt_from_collection_stay_exempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.freeze()
    with survivors_exempt():
        pass
    assert gc.get_freeze_count() > 0
    count = gc.get_freeze_count
    with monkeypatch.context() as patched:
        patched.setattr(gc, "get_freeze_count", lambda: 0)
        try:
            with survivors_exempt():
                assert count() > 0
            assert count() == 0
        finally:
            gc.freeze()


EXIT = """
import atexit, gc, sys
from paceline.util.garbage_collection import exempt_until_exit
atexit.register(lambda: print(gc.get_freeze_count() > 0))
{}
exempt_until_exit()
assert gc.get_freeze_count()
"""


@pytest.mark.parametrize(
    ("before", "lasts"),
    [("", "True"), ("sys.modules['triton'] = sys", "False"), ("import triton", "False")],
)
def test_exemption_ends_before_triton_looks_for_leaks(before: str, lasts: str) -> None:
    """The imported triton prints leaks on standard error."""
    if "import" in before and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    words = [sys.executable, "-c", EXIT.format(before)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == (lasts, "")


def test_public_names() -> None:
    import paceline

    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        paceline.nothing  # noqa: B018
