"""Test that unusable texts, templates and streams give one error line."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.cli.main import main
from paceline.datastore import verify
from paceline.errors import ConfigError, DatastoreError
from paceline.report.prompts import load_prompts
from paceline.text.conversations import chat_ids
from paceline.util.options import ModelOptions
from paceline.util.unicode import is_text
from tests.support.cli import call

# Python decodes a byte that is not UTF-8 to such a character; "\ud800" in JSON is similar.
HALF = "\udcff"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", "none", dtype="float32")


def test_half_surrogate_pairs_in_texts_are_refused(llm: LLM) -> None:
    assert is_text("é\U0001f600\0")
    for call_with_half in (
        lambda: llm.generate(HALF),
        lambda: llm.generate(["fine", "half \ud800"]),
        lambda: llm.stream(HALF),
        lambda: llm.chat([{"role": "user", "content": HALF}]),
        lambda: SamplingParams(stop=("fine", HALF)),
    ):
        with pytest.raises(ConfigError, match=r"\\ud"):
            call_with_half()


def test_half_surrogate_pairs_in_json_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "\\ud800", "category": "c", "turns": ["half \\udfff"]}\n')
    with pytest.raises(ConfigError, match=r"p.*:1: got 'half \\udfff'"):
        load_prompts([path])


@pytest.mark.parametrize(
    "template",
    ['{{ raise_exception("no") }}', "{% for %}", "{{ messages[0].content.a.b }}", "{{ 1 / 0 }}"],
)
def test_failing_chat_templates_are_reported(
    template: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.tokenizer, "chat_template", template)
    with pytest.raises(ConfigError, match="chat template"):
        llm.chat([{"role": "user", "content": "hi"}])
    with pytest.raises(ConfigError, match="chat template"):
        chat_ids(llm.tokenizer, [{"role": "user", "content": "hi"}], "conversation")


def test_chat_templates_get_variables(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        llm.tokenizer,
        "chat_template",
        "{% if quiet %}sh{% else %}ho{% endif %}{{ messages[0].content }}",
    )
    messages = [{"role": "user", "content": "hi"}]
    texts = [
        llm.tokenizer.decode(llm.chat_prompt(messages, given))
        for given in ({"quiet": True}, {"quiet": False}, None)
    ]
    assert texts == ["shhi", "hohi", "hohi"]
    with pytest.raises(ConfigError, match="chat_template_kwargs: got 'tokenize'"):
        llm.chat_prompt(messages, {"tokenize": False})


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("words", [["generate", "demo", "-"], ["chat"]], ids=" ".join)
def test_unreadable_standard_input_is_refused(
    words: list[str],
    closed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", None if closed else io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    monkeypatch.setattr(sys, "argv", ["paceline", *words, "--drafter", "none"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == (
        0 if words == ["chat"] and not closed else 2
    )  # an unreadable line does not end the conversation
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert ("closed" in line) == closed


@pytest.mark.parametrize("threads", [0, 1025, 100_000, 1 << 40])
def test_impossible_numbers_of_threads_are_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads: got {threads}; expected from 1 to 1024"):
        ModelOptions(threads=threads)


def test_invalid_lines_are_skipped_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps({"text": "good words"}).encode()
    bad = [
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b"{",
        b'{"words": "x"}',
        b"[" * 100_000,
        b'{"messages": [{"role": "user"}]}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([good, *bad, good, *[b"{"] * 20]))
    (tmp_path / "b.txt").write_bytes(b"first\n\xff\nthird\n")
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.txt")]
    status, output = call(
        "datastore", "build", tmp_path / "store", *names, "--tokenizer", "demo", "--skip-invalid"
    )
    assert status == 0
    assert "in 3 documents" in output
    errors = capfd.readouterr().err
    assert errors.count("skipped: ") == 10
    assert all(f"a.jsonl:{number}: " in errors for number in range(2, 8))
    assert "27 records were skipped, of which the first 10 are named" in errors
    call("datastore", "add", tmp_path / "store", names[1], "--tokenizer", "demo", "--skip-invalid")
    assert "b.txt:2: " in capfd.readouterr().err


def test_a_store_of_invalid_lines_is_not_built(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{\n{\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl:1: it is not JSON"):
        call("datastore", "build", tmp_path / "store", tmp_path / "a.jsonl", "--tokenizer", "demo")
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_unreadable_stores_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    store.mkdir()

    def refuse(path: Path, *rest: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("read_bytes", "stat", "is_file"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(DatastoreError, match=r"Permission denied.*Check its permissions"):
        verify(store)
    monkeypatch.undo()
    with pytest.raises(DatastoreError, match="File name too long"):
        verify("n" * 300)


def test_a_full_disk_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error is reported, and reported only once."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "argv", ["paceline", "drafters"])
        duplicate = os.dup(full.fileno())
        with pytest.raises(SystemExit) as end:
            main()
        os.close(duplicate)
    assert end.value.code == 2
    assert capfd.readouterr().err == "error: No space left on device\n"
