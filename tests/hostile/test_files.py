"""Test damaged files of every kind that is read.

They are refused or read correctly, and never overwritten.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams, datastore, demo
from paceline.errors import PacelineError
from paceline.replay.traces import read_top_tokens, read_traces
from paceline.report.prompts import load_prompts
from paceline.training.acceptance_head.recording import read_recording

pytestmark = pytest.mark.hostile
EIGHT = SamplingParams(8)
TEXT = "Once upon a time"


def with_drafter(spec: str, draft: bool = False) -> Callable[[Path, LLM], Any]:
    """Return a reader that generates with a drafter for the file."""

    def answer(path: Path, llm: LLM) -> list[int]:
        drafted = LLM(
            llm.model.model,
            spec.format(path),
            demo.DRAFT if draft else None,
            tokenizer=llm.tokenizer,
        )
        return drafted.generate(TEXT, EIGHT)[0].token_ids

    return answer


def model(path: Path, llm: LLM) -> list[int]:
    return LLM(path, "none", dtype="float32").generate([[5, 6, 7]], SamplingParams(24))[0].token_ids


def text(path: Path, llm: LLM) -> str:
    return LLM(path, "none", dtype="float32").generate(TEXT, EIGHT)[0].text


def talk(path: Path, llm: LLM) -> str:
    return LLM(path, "none", dtype="float32").chat([{"role": "user", "content": TEXT}], EIGHT).text


# File -> the path that is read, the reader, and whether every changed bit is detected.
READERS: dict[str, tuple[str, Callable[[Path, LLM], Any], bool]] = {
    "store/manifest.json": ("store", with_drafter("sssd:datastore={},budget=false"), True),
    "store/shard-*.bin": ("store", with_drafter("sssd:datastore={},budget=false"), True),
    "store/shard-1*.bin": ("store", lambda path, llm: datastore.verify(path), False),
    "head/card.json": ("head", with_drafter("specdec_pp:head={}", draft=True), True),
    "head/head.safetensors": ("head", with_drafter("specdec_pp:head={}", draft=True), True),
    "pool.safetensors": (
        "pool.safetensors",
        with_drafter("ouroboros:pool_file={}", draft=True),
        True,
    ),
    "recording/*.json": (
        "recording",
        lambda path, llm: read_recording(path).labels.tolist(),
        False,
    ),
    "recording/*.safetensors": (
        "recording",
        lambda path, llm: read_recording(path).labels.tolist(),
        False,
    ),
    "answers.jsonl": ("answers.jsonl", lambda path, llm: read_traces(path, llm.tokenizer), True),
    "answers.jsonl?*": (
        "answers.jsonl",
        lambda path, llm: [one.probs.tolist() for one in read_top_tokens(path) or ()],
        True,
    ),
    "prompts.jsonl": ("prompts.jsonl", lambda path, llm: load_prompts([path]), False),
    "tiny/config.json": ("tiny", model, False),
    "tiny/generation_config.json": ("tiny", model, False),
    "tiny/model.safetensors": ("tiny", model, False),
    "tiny.gguf": ("tiny.gguf", model, False),
    "target/tokenizer.json": ("target", text, False),
    "target/tokenizer_config.json": ("target", text, False),
    "target/chat_template.jinja": ("target", talk, False),
}


DAMAGE_IS_FOUND = "store/shard-1*.bin"  # its reader returns a list of damaged files


def _garbage(content: bytes) -> bytes:
    return random.Random(1).randbytes(min(len(content), 4096))


def _flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    for at in random.Random(len(content)).sample(range(len(content)), min(5, len(content))):
        changed[at] ^= 1 << (at % 8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "garbage": _garbage,
    "zeros in front": lambda content: bytes(min(64, len(content))) + content[64:],
    "half a surrogate pair": lambda content: b'"\\ud800"',
    "null": lambda content: b"null",
    "a list": lambda content: b"[]",
    "an object": lambda content: b'{"a": {"b": [1, 2]}}',
    "nested deeply": lambda content: b"[" * 100_000,
    "flipped": _flipped,
}


def _cases() -> list[tuple[str, str]]:
    """Return all pairs except undetectable ones.

    These are bits of unchecked files, and texts that are valid templates.
    """
    pairs = [
        (name, how)
        for name, (_, _, checked) in READERS.items()
        for how in DAMAGES
        if checked or how != "flipped"
    ]
    templates = ("half a surrogate pair", "null", "a list", "an object")
    return [
        (name, how) for name, how in pairs if not (name.endswith(".jinja") and how in templates)
    ]


@pytest.mark.parametrize(("name", "damage"), _cases())
def test_damaged_files_are_refused_or_read_correctly(
    name: str, damage: str, valid_files: Path, llm: LLM, tmp_path: Path
) -> None:
    source, read, _ = READERS[name]
    for part in valid_files.glob(f"{source}*"):
        (shutil.copytree if part.is_dir() else shutil.copy)(part, tmp_path / part.name)
    (path, *_) = sorted(found for found in tmp_path.glob(name) if found.suffix != ".lock")
    sound = _read_undamaged(name, read, tmp_path / source, llm)
    content = DAMAGES[damage](path.read_bytes())
    path.write_bytes(content)
    try:
        found = read(tmp_path / source, llm)
    except PacelineError as error:
        message: str | None = str(error)
    else:
        message = None
        assert found == sound or (name == DAMAGE_IS_FOUND and found)
    assert message is None or "\n" not in message
    assert message is None or path.read_bytes() == content


_UNDAMAGED: dict[str, Any] = {}


def _read_undamaged(name: str, read: Callable[[Path, LLM], Any], path: Path, llm: LLM) -> Any:
    """Return what is read from the undamaged file, cached by name."""
    if name not in _UNDAMAGED:
        _UNDAMAGED[name] = read(path, llm)
    return _UNDAMAGED[name]
