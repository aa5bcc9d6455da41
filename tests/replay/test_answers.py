"""Test files of recorded answers: interrupted, damaged or with other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.datastore.inputs import check_recorded, documents
from paceline.errors import ConfigError
from paceline.recorded_answers.lines import RecordedAnswer
from paceline.recorded_answers.reading import read_answers, read_settings
from paceline.recorded_answers.writing import writing
from paceline.replay.traces import read_traces, tokenizer_of

FINGERPRINT, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
SETTINGS: dict[str, Any] = {
    "model": "m",
    "tokenizer": FINGERPRINT,
    "sampling": {"temperature": 0.0, "stop": ("\n",)},
}
ANSWERS = [
    RecordedAnswer(f"é{n}", "c", [n, 7], [n + 1, 2][: 1 + n % 2], ("stop", "length")[n % 2])
    for n in range(5)
]


def fill(path: Path, batches: int = 9, settings: dict[str, Any] = SETTINGS, batch: int = 2) -> Path:
    """Write the missing part of `ANSWERS`, up to `batches` batches."""
    with writing(path, settings, len(ANSWERS), batch) as file:
        for start in range(file.done, len(ANSWERS), batch)[:batches]:
            file.write(ANSWERS[start : start + batch])
    return path


def test_written_answers_are_read(tmp_path: Path) -> None:
    path = fill(tmp_path / "new" / "a.jsonl")
    assert list(read_answers(path)) == ANSWERS
    assert list(read_answers(path, 3)) == ANSWERS[:3]
    assert list(read_answers(path, 30)) == ANSWERS
    settings = read_settings(path)
    assert settings is not None
    assert (settings["count"], settings["batch"], settings["sampling"]) == (
        5,
        2,
        {"temperature": 0.0, "stop": ["\n"]},
    )
    assert [json.loads(line)["output_ids"] for line in path.read_text().splitlines()[1:]] == [
        answer.output_ids for answer in ANSWERS
    ]
    before = path.stat()
    fill(path)
    assert path.stat() == before


def test_file_cut_at_any_byte_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # called a thousand times, and no power failure is tested
    monkeypatch.setattr("os.fsync", lambda handle: None)
    complete = fill(tmp_path / "complete.jsonl").read_bytes()
    ends = [index + 1 for index, byte in enumerate(complete) if byte == ord("\n")]
    path = tmp_path / "cut.jsonl"
    for cut in range(len(complete) + 1):
        path.write_bytes(complete[:cut])
        there = max(0, sum(end <= cut for end in ends) - 1)
        if cut < len(complete):
            with pytest.raises(
                ConfigError,
                match=f"got {there} of its 5" if cut >= ends[0] else "got something else",
            ):
                list(read_answers(path))
        if cut >= ends[0] and there:
            assert list(read_answers(path, there)) == ANSWERS[:there]
        with writing(path, SETTINGS, len(ANSWERS), 2) as file:
            assert file.done == (5 if there == 5 else there // 2 * 2)
        fill(path)
        assert path.read_bytes() == complete
    path.write_bytes(complete + b'{"half')
    assert fill(path).read_bytes() == complete


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    complete = fill(tmp_path / "complete.jsonl").read_bytes()
    path, first = tmp_path / "changed.jsonl", complete.index(b"\n")
    for index in range(len(complete)):
        changed = bytearray(complete)
        changed[index] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ConfigError, match=r"damaged|something else|version|of its 5"):
            list(read_answers(path))
        if index > first:
            line = complete.count(b"\n", 0, index) + 1
            with pytest.raises(ConfigError, match=f":{line}: the line is damaged|got 4 of its 5"):
                list(read_answers(path))


def test_lost_doubled_or_moved_lines_are_found(
    tmp_path: Path,
) -> None:
    path = fill(tmp_path / "a.jsonl")
    complete = path.read_bytes()
    first, *lines = complete.splitlines(keepends=True)
    for changed in (
        lines[:2] + lines[3:],
        [*lines[:2], lines[1], *lines[2:]],
        [*lines[:2], lines[3], lines[2], lines[4]],
    ):
        path.write_bytes(b"".join([first, *changed]))
        for attempt in (lambda: list(read_answers(path)), lambda: fill(path)):
            with pytest.raises(
                ConfigError, match=":4: the line is damaged: its checksum does not match"
            ):
                attempt()
    path.write_bytes(b"".join([first, *lines[:2]]))
    assert fill(path).read_bytes() == complete
    with writing(tmp_path / "b.jsonl", SETTINGS, 5, 2) as file:
        file.write([*ANSWERS, ANSWERS[0]])
    with pytest.raises(ConfigError, match=":7: the line is damaged: there are more than the 5"):
        list(read_answers(tmp_path / "b.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"sampling": {"temperature": 0.5, "stop": ("\n",)}},
            r"temperature: got 0\.5; expected 0\.0",
        ),
        ({"sampling": {"temperature": 0.0, "stop": ()}}, r"stop: got \[\]; expected \['\\n'\]"),
        ({"tokenizer": OTHER}, f"tokenizer: got '{OTHER}'; expected '{FINGERPRINT}'"),
        ({"dtype": "float32"}, "dtype: got 'float32'; expected None"),
    ],
)
def test_other_settings_are_refused_with_both_values(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    for batches in (1, 9):
        path = fill(tmp_path / f"{batches}.jsonl", batches)
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=f"{message}.*, as at the start of the file"):
            fill(path, settings={**SETTINGS, **change})
        with pytest.raises(ConfigError, match="batch: got 3; expected 2"):
            fill(path, batch=3)
        assert path.read_bytes() == before
    path = tmp_path / "cut.jsonl"
    path.write_bytes(before.partition(b"\n")[0])
    with pytest.raises(ConfigError, match="got something else"):
        fill(path, settings={**SETTINGS, **change})


def test_another_name_of_the_same_model_is_accepted(tmp_path: Path) -> None:
    path = fill(tmp_path / "a.jsonl", 1)
    assert list(read_answers(fill(path, settings={**SETTINGS, "model": "elsewhere/m"}))) == ANSWERS


@pytest.mark.parametrize(
    "content",
    [
        b"notes",
        b"notes\n",
        b"\n",
        b'{"text": "x"}\n',
        b"[1]\n",
        b"[" * 100_000 + b"\n",
        b"\xff\x00",
        b"x" * (2 << 20),
    ],
)
def test_unrelated_files_are_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert read_settings(path) is None
    for attempt in (lambda: list(read_answers(path)), lambda: fill(path)):
        with pytest.raises(
            ConfigError, match=r"got something else; expected a file from `paceline record`"
        ):
            attempt()
    assert path.read_bytes() == content


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="expected a file that can be"):
        fill(tmp_path)
    with pytest.raises(ConfigError, match="expected a file that can be written"):
        fill(tmp_path / "file" / "a.jsonl")
    with pytest.raises(ConfigError, match="got no file; expected a file from `paceline record`"):
        list(read_answers(tmp_path / "none.jsonl"))
    path = fill(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(ConfigError, match="got version 2; expected 1"):
        list(read_answers(path))


def test_only_one_process_writes_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with (
        writing(path, SETTINGS, 5, 2),
        pytest.raises(ConfigError, match="another process is writing this file"),
    ):
        fill(path)
    assert list(read_answers(fill(path))) == ANSWERS


def test_replays_and_datastores_read_answer_files(tmp_path: Path) -> None:
    path, other = (
        fill(tmp_path / "a.jsonl"),
        fill(tmp_path / "b.jsonl", settings={**SETTINGS, "tokenizer": OTHER}),
    )
    unfinished, plain = fill(tmp_path / "c.jsonl", 1), tmp_path / "d.jsonl"
    plain.write_text('{"prompt": [1], "output": [2]}\n')
    assert read_traces(path) == [(answer.prompt_ids, answer.output_ids) for answer in ANSWERS]
    assert (
        read_traces(path, FINGERPRINT, limit=2)
        == read_traces(unfinished, limit=2)
        == read_traces(path)[:2]
    )
    assert list(documents([str(path)], FINGERPRINT)) == [
        answer.prompt_ids + answer.output_ids for answer in ANSWERS
    ]
    assert list(documents([str(path)], None, answers_only=True)) == [
        answer.output_ids for answer in ANSWERS
    ]
    with pytest.raises(ConfigError, match="got 2 of its 5 answers"):
        read_traces(unfinished)
    with pytest.raises(ConfigError, match="got 2 of its 5 answers"):
        list(documents([str(unfinished)], None))
    for read in (read_traces, lambda name, tokenizer: list(documents([str(name)], tokenizer))):
        with pytest.raises(ConfigError, match=f"got the tokenizer {FINGERPRINT}; expected {OTHER}"):
            read(other, FINGERPRINT)
    assert tokenizer_of([path, unfinished]) == FINGERPRINT
    assert tokenizer_of([path, plain]) is None
    with pytest.raises(ConfigError, match="got the tokenizer"):
        tokenizer_of([path, other])
    assert not check_recorded(plain, FINGERPRINT)
