"""Shared fixtures; tests run offline on one CPU thread with a separate cache."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest

from paceline.util.garbage_collection import exempt_until_exit
from tests.support.hermetic import isolate

# A shell starts background jobs with this signal ignored, and their children inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from tests.support.shared import Pair

DATA = Path(__file__).parent / "data"

isolate()


def pytest_configure(config: pytest.Config) -> None:
    """Set up the libraries, except in an xdist controller, which starts sooner."""
    if getattr(config.option, "numprocesses", None):
        return
    gc.disable()  # until collection ends, since imports leave hardly any garbage
    import torch
    import transformers
    from hypothesis import settings

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    settings.register_profile("steady", deadline=None, derandomize=True, database=None)
    settings.load_profile("steady")


# These run first, so that no process ends the session alone with a long file.
_LONGEST = (
    "real",
    "test_lossless.py",
    "test_distribution.py",
    "test_rotary.py",
    "test_docs.py",
    "test_demo.py",
    "test_device_traffic.py",
    "test_architectures.py",
    "test_ouroboros.py",
    "test_gpu_day.py",
    "test_grammars.py",
    "test_recurrent.py",
    "test_contract.py",
    "test_padded_vocabulary.py",
    "test_kv_cache_manager.py",
    "test_serving.py",
    "test_kept_vocabulary.py",
    "test_length_rules.py",
    "test_not_numbers.py",
    "test_sssd.py",
    "test_parallel.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, in the order of `_LONGEST`."""
    items.sort(
        key=lambda item: next(
            (index for index, name in enumerate(_LONGEST) if name in item.path.parts), len(_LONGEST)
        )
    )


def pytest_collection_finish() -> None:
    """Exempt the imported libraries from garbage collection, and enable it again."""
    exempt_until_exit()
    gc.enable()


# Folders of commands that collect garbage before every timed call.
_COLLECTING = ("bench", "papers")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Exempt objects that outlive a test file from garbage collection.

    Some commands collect garbage before they measure time. Without the exemption, each collection
    would visit all modules, models and results that earlier tests loaded.
    """
    yield
    is_last = nextitem is None or nextitem.path != item.path
    if is_last or item.path.parent.name in _COLLECTING:
        gc.collect()
        exempt_until_exit()


def _load(name: str) -> Any:
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        DATA / name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="session")
def pair() -> Pair:
    """Return a tiny Llama as the target and a noisy copy as the draft model.

    The vocabulary has 256 tokens. The target accepts most tokens of the draft model.
    """
    from tests.support.shared import COUNT, Pair, reference

    prompts = [
        json.loads(line)["ids"] for line in (DATA / "prompts.jsonl").read_text().splitlines()
    ]
    target = _load("tiny_target")
    return Pair(
        target,
        _load("tiny_noisy_0.05"),
        prompts,
        [reference(target, prompt, COUNT) for prompt in prompts],
    )


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Return a tokenizer with 256 tokens, each of which has readable text."""
    from tests.support.models import piece_tokenizer

    return piece_tokenizer()


@pytest.fixture(scope="session")
def converted_smollm2(pytestconfig: pytest.Config) -> None:
    """Store the converted SmolLM2 in pytest's cache, which outlives the session."""
    from paceline.model import gguf_checkpoint, gguf_header
    from paceline.util import cache

    if pytestconfig.cache is None:
        return
    for kind in (gguf_checkpoint.KIND, gguf_header.KIND):
        with suppress(FileExistsError):  # another process linked it
            (cache.root() / kind).symlink_to(pytestconfig.cache.mkdir(f"smollm2-{kind}"))


@pytest.fixture
def measured_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measure costs as for a user, in a new cache; return its folder."""
    monkeypatch.delenv("PACELINE_COST_CURVE")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt, as in a foreground process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
