"""Damaged files of every kind that is read: refused, or read as they were; never something else,
and never written over.
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
from paceline.replay.traces import read_told, read_traces
from paceline.report.prompts import load_prompts
from paceline.training.acceptance_head.recording import read_recording

pytestmark = pytest.mark.hostile
EIGHT = SamplingParams(8)
TEXT = "Once upon a time"


def behind(spec: str, draft: bool = False) -> Callable[[Path, LLM], Any]:
    """The answer of the embedded target behind a drafter that reads the file."""

    def answer(place: Path, llm: LLM) -> list[int]:
        drafted = LLM(
            llm.model.model,
            spec.format(place),
            demo.DRAFT if draft else None,
            tokenizer=llm.tokenizer,
        )
        return drafted.generate(TEXT, EIGHT)[0].token_ids

    return answer


def model(place: Path, llm: LLM) -> list[int]:
    return (
        LLM(place, "none", dtype="float32").generate([[5, 6, 7]], SamplingParams(24))[0].token_ids
    )


def text(place: Path, llm: LLM) -> str:
    return LLM(place, "none", dtype="float32").generate(TEXT, EIGHT)[0].text


def talk(place: Path, llm: LLM) -> str:
    return LLM(place, "none", dtype="float32").chat([{"role": "user", "content": TEXT}], EIGHT).text


# The file -> what is read (a folder or the file itself), how, and whether every changed bit is
# found.
READERS: dict[str, tuple[str, Callable[[Path, LLM], Any], bool]] = {
    "store/manifest.json": ("store", behind("sssd:datastore={},budget=false"), True),
    "store/shard-*.bin": ("store", behind("sssd:datastore={},budget=false"), True),
    "store/shard-1*.bin": ("store", lambda place, llm: datastore.verify(place), False),
    "head/card.json": ("head", behind("specdec_pp:head={}", draft=True), True),
    "head/head.safetensors": ("head", behind("specdec_pp:head={}", draft=True), True),
    "pool.safetensors": ("pool.safetensors", behind("ouroboros:pool_file={}", draft=True), True),
    "recording/*.json": (
        "recording",
        lambda place, llm: read_recording(place).labels.tolist(),
        False,
    ),
    "recording/*.safetensors": (
        "recording",
        lambda place, llm: read_recording(place).labels.tolist(),
        False,
    ),
    "answers.jsonl": ("answers.jsonl", lambda place, llm: read_traces(place, llm.tokenizer), True),
    "answers.jsonl?*": (
        "answers.jsonl",
        lambda place, llm: [one.probs.tolist() for one in read_told(place) or ()],
        True,
    ),
    "prompts.jsonl": ("prompts.jsonl", lambda place, llm: load_prompts([place]), False),
    "tiny/config.json": ("tiny", model, False),
    "tiny/generation_config.json": ("tiny", model, False),
    "tiny/model.safetensors": ("tiny", model, False),
    "tiny.gguf": ("tiny.gguf", model, False),
    "target/tokenizer.json": ("target", text, False),
    "target/tokenizer_config.json": ("target", text, False),
    "target/chat_template.jinja": ("target", talk, False),
}


DAMAGE_IS_FOUND = "store/shard-1*.bin"  # where the answer is a list of what is damaged


def _garbage(content: bytes) -> bytes:
    return random.Random(1).randbytes(min(len(content), 4096))


def _flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    for place in random.Random(len(content)).sample(range(len(content)), min(5, len(content))):
        changed[place] ^= 1 << (place % 8)
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
    """All pairs but those that nobody could tell: bits of unchecked files, and texts that are
    templates as any other.
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
def test_damaged(name: str, damage: str, yard: Path, llm: LLM, tmp_path: Path) -> None:
    place, read, _ = READERS[name]
    for part in yard.glob(f"{place}*"):
        (shutil.copytree if part.is_dir() else shutil.copy)(part, tmp_path / part.name)
    (path, *_) = sorted(found for found in tmp_path.glob(name) if found.suffix != ".lock")
    sound = _sound(name, read, tmp_path / place, llm)
    content = DAMAGES[damage](path.read_bytes())
    path.write_bytes(content)
    try:
        found = read(tmp_path / place, llm)
    except PacelineError as error:
        said: str | None = str(error)
    else:
        said = None
        assert found == sound or (name == DAMAGE_IS_FOUND and found)
    assert said is None or "\n" not in said
    assert said is None or path.read_bytes() == content


_KEPT: dict[str, Any] = {}


def _sound(name: str, read: Callable[[Path, LLM], Any], place: Path, llm: LLM) -> Any:
    """What is read of the whole file; once for all of its damages."""
    if name not in _KEPT:
        _KEPT[name] = read(place, llm)
    return _KEPT[name]
