"""Test `paceline datastore`: inputs, printed tables and exit statuses."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from paceline import datastore, demo
from paceline.cli.loading import load_tokenizer
from paceline.datastore import inputs
from paceline.errors import ConfigError, DatastoreError
from paceline.replay.traces import read_traces
from tests.support.cli import call

RECORDS: list[dict[str, Any]] = [
    {"text": "def add(a, b):"},
    {
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Good day"},
        ]
    },
    {"prompt": "1 + 1 =", "output": " 2"},
    {"prompt": [1, 2], "output": [3]},
    {"output": [4]},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("demo")


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, RECORDS)) + "\n\n")
    return path


def test_documents_of_json_lines(jsonl: Path, tokenizer: Any) -> None:
    ids = [list(document) for document in inputs.documents([str(jsonl)], tokenizer)]
    assert [tokenizer.decode(document) for document in ids[:1]] == [RECORDS[0]["text"]]
    assert "Hello" in tokenizer.decode(ids[1])
    assert tokenizer.decode(ids[1]) == tokenizer.apply_chat_template(
        RECORDS[1]["messages"], tokenize=False
    )
    assert tokenizer.decode(ids[2]) == "1 + 1 = 2"
    assert ids[3:] == [[1, 2, 3], [4]]
    answers = [
        list(document) for document in inputs.documents([str(jsonl)], tokenizer, answers_only=True)
    ]
    assert tokenizer.decode(answers[1]) == "Good day"
    assert answers[3:] == [[3], [4]]


def test_documents_of_text_and_arrays(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "TEXT_CHARACTERS", 10)
    (tmp_path / "a.txt").write_text("first line\nsecond line\nthird")
    np.save(tmp_path / "b.npy", np.arange(4, dtype=np.uint16))
    np.save(tmp_path / "c.npy", np.arange(4).reshape(2, 2))
    names = [str(tmp_path / name) for name in ("a.txt", "b.npy", "c.npy")]
    ids = [list(map(int, document)) for document in inputs.documents(names, tokenizer)]
    assert (
        "".join(tokenizer.decode(document) for document in ids[:3])
        == "first line\nsecond line\nthird"
    )
    assert ids[3:] == [[0, 1, 2, 3], [0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{',
            r"jsonl:2: it is not JSON \(Expecting property .* at column 2\)\.",
        ),
        # The column is that of the end of the line.
        (
            "a.jsonl",
            b'{"messages": [\n{}\n',
            r"jsonl:1: it is not JSON \(Expecting value at column 15\)\.",
        ),
        ("a.jsonl", b'{"words": "x"}', "jsonl:1: got a record of words; expected text, messages"),
        ("a.jsonl", b'{"text": "\xff"}', "jsonl:1: got .* not UTF-8"),
        ("a.npy", b"nothing", "not a numpy array"),
        ("a.csv", b"", "got the file type '.csv'; expected"),
    ],
)
def test_bad_inputs_are_refused(
    tmp_path: Path, tokenizer: Any, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(inputs.documents([str(tmp_path / name)], tokenizer))


def test_missing_inputs_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    for name, message in (("gone.txt", "no input file"), (str(tmp_path / "a.npy"), "float64")):
        with pytest.raises(ConfigError, match=message):
            list(inputs.documents([name], tokenizer))


@pytest.mark.parametrize("line", ['{"prompt": "a"}', '{"id": 1, "category": "c", "turns": ["a"]}'])
def test_prompts_are_not_answers(tmp_path: Path, tokenizer: Any, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    fix = r"p\.jsonl:1: got .*; expected .* Record answers with `paceline record`\."
    with pytest.raises(ConfigError, match=fix):
        list(inputs.documents([str(path)], tokenizer))
    with pytest.raises(ConfigError, match=fix):
        read_traces(path, tokenizer)
    path.write_text('{"prompt": "a", "response": "b"}\n')
    for read in (read_traces, lambda path, tokenizer: list(inputs.documents([path], tokenizer))):
        with pytest.raises(ConfigError, match="Rename its fields"):
            read(str(path), tokenizer)


def test_documents_of_parquet_files(tmp_path: Path, tokenizer: Any) -> None:
    arrow = pytest.importorskip("pyarrow", reason="of the extra paceline[datasets]")
    parquet = import_module("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    for record in RECORDS[:4]:
        parquet.write_table(arrow.Table.from_pylist([record] * 600), path, row_group_size=100)
        (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
        for answers_only in (False, True):
            (same,) = inputs.documents(
                [str(tmp_path / "a.jsonl")], tokenizer, answers_only=answers_only
            )
            assert (
                list(inputs.documents([str(path)], tokenizer, answers_only=answers_only))
                == [same] * 600
            )
    parquet.write_table(arrow.Table.from_pylist([{"text": "x"}, {"text": None}]), path)
    with pytest.raises(
        ConfigError, match=r"a\.parquet, record 2: got a record of text; expected text"
    ):
        list(inputs.documents([str(path)], tokenizer))
    whole = path.read_bytes()
    for content in (b"nothing", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"a\.parquet' is not a Parquet file, or is damaged"):
            list(inputs.documents([str(path)], tokenizer))


def test_documents_of_a_data_set(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("datasets", reason="of the extra paceline[datasets]")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "some"
    folder.mkdir()
    for split, text in (("train", "first"), ("test", "second")):
        (folder / f"{split}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    for name, text in ((f"datasets:{folder}", "first"), (f"datasets:{folder}@test", "second")):
        (document,) = inputs.documents([name], tokenizer)
        assert tokenizer.decode(list(document)) == text
    for name in (f"datasets:{folder}@none", f"datasets:{tmp_path / 'nowhere'}"):
        with pytest.raises(ConfigError, match=r"the data set .* cannot be read"):
            list(inputs.documents([name], tokenizer))


def test_a_missing_extra_is_named(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    for module, name in (("datasets", "datasets:x@test"), ("pyarrow.parquet", str(path))):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            ConfigError,
            match=rf"{module.partition('.')[0]}, which is not.*pip install '\.\[datasets\]'",
        ):
            list(inputs.documents([name], tokenizer))


def run(*arguments: str | Path) -> tuple[int, str]:
    return call("datastore", *arguments)


def test_build_add_info_and_verify(tmp_path: Path, jsonl: Path, tokenizer: Any) -> None:
    path = tmp_path / "s"
    code, output = run("build", path, jsonl, "--tokenizer", "demo")
    assert (code, "5 documents" in output) == (0, True)
    more = tmp_path / "more.txt"
    more.write_text("and more")
    assert run("add", path, more, "--tokenizer", "demo")[0] == 0
    code, output = run("info", path)
    assert code == 0
    assert str(datastore.fingerprint_of(tokenizer)) in output.replace("\n", "")
    assert "uint16" in output
    assert run("verify", path)[0] == 0
    shard = next(path.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    code, output = run("verify", path)
    assert (code, shard.name in output) == (1, True)
    with pytest.raises(DatastoreError, match="there is no store"):
        run("info", tmp_path / "none")


def test_a_file_is_refused_as_a_folder(jsonl: Path) -> None:
    with pytest.raises(DatastoreError, match=r"jsonl' is a file\. Name a folder for the store\."):
        run("build", jsonl, jsonl, "--tokenizer", "demo")


def test_bad_inputs_leave_the_old_store(tmp_path: Path, jsonl: Path) -> None:
    path, ids, empty = tmp_path / "s", tmp_path / "ids.npy", tmp_path / "empty.jsonl"
    run("build", path, jsonl, "--tokenizer", "demo")
    before = datastore.info(path)
    np.save(ids, np.array([1, 4096]))
    empty.write_text("\n")
    for command in ("build", "add"):
        for source, message in (
            (ids, "token id 4096; expected 0 to 4095"),
            (empty, "contain no tokens"),
        ):
            with pytest.raises(DatastoreError, match=message):
                run(command, path, source, "--tokenizer", "demo")
        with pytest.raises(ConfigError, match=r"built in and read-only. Write \./demo"):
            run(command, "demo", jsonl, "--tokenizer", "demo")
    assert datastore.info(path) == before
    assert datastore.verify(path) == []


def test_fingerprints_depend_on_the_vocabulary_only(tokenizer: Any) -> None:
    raw = Tokenizer.from_file(str(demo.TARGET / "tokenizer.json"))
    before = datastore.fingerprint_of(raw)
    assert before == datastore.fingerprint_of(tokenizer)
    raw.enable_padding(length=8)
    raw.enable_truncation(4)
    assert datastore.fingerprint_of(raw) == before
    raw.add_tokens(["one more"])
    assert datastore.fingerprint_of(raw) != before

    class Slow:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 1}

    assert str(datastore.fingerprint_of(Slow())).startswith("sha256:")
    with pytest.raises(ConfigError, match="without a vocabulary, list"):
        datastore.fingerprint_of([])
