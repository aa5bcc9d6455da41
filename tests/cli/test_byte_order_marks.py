"""Test that byte order marks at the start of files are ignored."""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import datastore
from paceline.cli.generate import read_prompts
from paceline.cli.prompt_input import lines_of, read_prompt
from paceline.cli.serve import ListenOptions, _keys
from paceline.datastore.inputs import documents
from paceline.errors import ConfigError
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.recorded_answers.reading import read_answers
from paceline.replay.traces import read_traces
from paceline.report.documents import kind_of
from paceline.report.prompts import load_prompts
from paceline.util.files import parse_json
from paceline.util.text_files import read_text
from tests.support.cli import call

PROMPTS = [{"prompt": "def add(a, b):"}, {"prompt": "class Stack:"}]
BENCH = [{"id": 1, "category": "a", "turns": ["one"]}, {"id": 2, "category": "a", "turns": ["two"]}]
PAIRS = [{"prompt": [1, 2], "output": [3]}, {"prompt": [4], "output": [5, 6]}]


def lines(rows: list[Any]) -> bytes:
    return "\r\n".join(map(json.dumps, rows)).encode()


def tokens(path: Path) -> list[list[int]]:
    return [list(map(int, one)) for one in documents([str(path)], load_tokenizer(None, "demo"))]


READERS: dict[str, tuple[str, bytes, Callable[[Path], Any]]] = {
    "generate": (
        "p.jsonl",
        lines(PROMPTS),
        lambda path: [one.prompt for one in read_prompts(path)],
    ),
    "plain prompts": (
        "p.txt",
        b"one\r\ntwo",
        lambda path: [one.prompt for one in read_prompts(path)],
    ),
    "bench": ("p.jsonl", lines(BENCH), lambda path: load_prompts([path])),
    "records": ("d.jsonl", lines([{"text": "some words"}, {"text": "more"}]), tokens),
    "text": ("d.txt", b"some words\r\nand more", tokens),
    "traces": ("t.jsonl", lines(PAIRS), lambda path: read_traces(path)),
    "keys": ("keys", b"one\r\ntwo", lambda path: _keys(ListenOptions(api_key_file=path))),
    "results": ("r.json", b'{"kind": "bench"}', lambda path: kind_of(path)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_is_ignored(name: str, tmp_path: Path) -> None:
    file, content, read = READERS[name]
    path = tmp_path / file
    path.write_bytes(content)
    want = read(path)
    assert want
    path.write_bytes(codecs.BOM_UTF8 + content)
    assert read(path) == want


@pytest.mark.parametrize("name", list(READERS))
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_the_error_names_other_encodings(name: str, encoding: str, tmp_path: Path) -> None:
    file, content, read = READERS[name]
    path = tmp_path / file
    path.write_bytes(content.decode().encode(encoding))
    with pytest.raises(
        ConfigError, match=f"got text in {encoding.upper()}.*expected UTF-8"
    ) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_marks_inside_joined_files_are_ignored(tmp_path: Path) -> None:
    joined = codecs.BOM_UTF8 + lines(PROMPTS[:1]) + b"\n" + codecs.BOM_UTF8 + lines(PROMPTS[1:])
    (tmp_path / "p.jsonl").write_bytes(joined)
    assert [one.prompt for one in read_prompts(tmp_path / "p.jsonl")] == [
        row["prompt"] for row in PROMPTS
    ]
    assert parse_json("\ufeff[1]") == parse_json(codecs.BOM_UTF8 + b"[1]") == [1]


def test_marks_on_standard_input_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    given(codecs.BOM_UTF8 + b"a prompt")
    assert read_prompt() == "a prompt"
    given(codecs.BOM_UTF8 + b"one\r\ntwo\n")
    read = lines_of([])
    assert [read(), read(), read()] == ["one", "two", None]
    given("a prompt".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"standard input: got text in UTF-16"):
        read_prompt()


def test_a_mark_in_recorded_answers_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(codecs.BOM_UTF8 + lines(BENCH))
    path = tmp_path / "answers.jsonl"
    status, _ = call(
        "record",
        "demo",
        "--prompts",
        tmp_path / "p.jsonl",
        "--out",
        path,
        "-n",
        "4",
        "--limit",
        "0",
    )
    assert status == 0
    want = list(read_answers(path))
    assert len(want) == 2
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert list(read_answers(path)) == want


def test_a_mark_in_a_grammar_is_ignored(tokenizer: Any) -> None:
    pytest.importorskip("llguidance")
    from paceline.grammars import json_schema, lark

    json_schema(tokenizer, '\ufeff{"type": "object"}')
    lark(tokenizer, '\ufeffstart: "a"')


@pytest.mark.parametrize("command", ["build", "add"])
def test_invalid_records_end_a_build(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No partial store is written, and an existing store stays unchanged."""
    store = tmp_path / "store"
    (tmp_path / "good.jsonl").write_bytes(lines([{"text": "some words"}]))
    assert call("datastore", "build", store, tmp_path / "good.jsonl", "--tokenizer", "demo")[0] == 0
    before = datastore.info(store)
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "one"}\n{"words": "two"}\n{\n{"text": "three"}\n')
    words = ("datastore", command, store, tmp_path / "d.jsonl", "--tokenizer", "demo")
    with pytest.raises(ConfigError, match=r"2 records are invalid.*--skip-invalid"):
        call(*words)
    errors = capfd.readouterr().err
    assert errors.count("invalid: ") == 2
    assert "d.jsonl:2" in errors
    assert datastore.info(store) == before
    assert datastore.verify(store) == []
    assert call(*words, "--skip-invalid")[0] == 0
    assert datastore.info(store).documents == (2 if command == "build" else 3)


def test_a_build_without_a_valid_record_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"words": "x"}\n{\n')
    words = ("datastore", "build", tmp_path / "store", tmp_path / "d.jsonl", "--tokenizer", "demo")
    for options, message in (([], "d.jsonl:1: "), (["--skip-invalid"], "there is no valid record")):
        with pytest.raises(ConfigError, match=message):
            call(*words, *options)
        assert not (tmp_path / "store").exists()


def test_counts_of_one_are_singular(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "one"}\n{\n')
    words = ("datastore", "build", tmp_path / "store", tmp_path / "d.jsonl", "--tokenizer", "demo")
    assert call(*words, "--skip-invalid")[1].endswith(" MB, 1 shard\n")
    assert "\n1 record was skipped\n" in capfd.readouterr().err
    assert "MB in 1 shard\n" in call("datastore", "info", tmp_path / "store")[1]


def test_a_build_ends_early_if_all_records_are_invalid(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "one"}\n' + b"{\n" * 1000)
    with pytest.raises(ConfigError, match="at least 10 records are invalid"):
        call("datastore", "build", tmp_path / "store", tmp_path / "d.jsonl", "--tokenizer", "demo")
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_only_the_first_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(codecs.BOM_UTF8 * 2 + b"\xc3\xa4\r\n")
    assert read_text(tmp_path / "a") == "\ufeffä\r\n"
