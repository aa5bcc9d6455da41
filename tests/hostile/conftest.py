"""Valid files of every kind that is read, each made once."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.drafters import create
from paceline.replay.recorder import RecordOptions, encode_prompts, record_answers
from paceline.report.prompts import load_prompts
from tests.conftest import DATA
from tests.hostile.shell import LIMIT
from tests.support.gguf import write_gguf
from tests.support.recordings import synthetic_recording
from tests.support.shared import Pair


@pytest.fixture(scope="session")
def llm() -> LLM:
    """Return the embedded target with plain decoding."""
    return LLM("demo", "none", dtype="float32")


@pytest.fixture(scope="session")
def valid_files(tmp_path_factory: pytest.TempPathFactory, llm: LLM, pair: Pair) -> Path:
    """Return a folder with all valid files, by the names that the tables use."""
    from paceline import demo

    made = tmp_path_factory.mktemp("valid_files")
    shutil.copytree(demo.STORE, made / "store")
    shutil.copytree(demo.HEAD, made / "head")
    shutil.copytree(demo.target_of("demo"), made / "target")
    shutil.copytree(DATA / "tiny_target", made / "tiny")
    write_gguf(made / "tiny.gguf")
    synthetic_recording(made / "recording", pair, 30, 4)
    shutil.copy(demo.PROMPTS, made / "prompts.jsonl")
    questions = encode_prompts(load_prompts(limit=4), llm, 12)
    record_answers(
        made / "answers.jsonl",
        llm,
        questions,
        SamplingParams(12),
        RecordOptions(model="demo", top=4),
    )
    (made / "documents.txt").write_text("Once upon a time\nthere was a store.\n")
    drafter = create(
        f"ouroboros:pool_file={made / 'pool.safetensors'}", draft_model=demo.draft_of("demo")
    )
    LLM("demo", drafter, dtype="float32").generate("Once upon a time", SamplingParams(24))
    drafter.save_pool()  # type: ignore[attr-defined]
    return made


@pytest.fixture(scope="session")
def plain(llm: LLM) -> Any:
    """Return a function that generates with the embedded target and plain decoding."""
    return lambda prompt, **options: llm.generate(
        prompt, SamplingParams(**{"max_new_tokens": 8, **options})
    )[0]


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Fail a test that takes too long in this process; commands have another limit."""

    def hang(*_: Any) -> None:
        raise TimeoutError(f"hangs: more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, LIMIT + 30)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
