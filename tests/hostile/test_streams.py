"""Test closed, full or abandoned streams, invalid text, and signals.

Commands exit with status 0, 2, 130 or 141, print one line, and leave no partial files.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.replay.traces import read_traces
from tests.hostile.shell import ABANDONED, CLOSED, FULL, CommandResult, listing, run
from tests.support.commands import start_command

pytestmark = pytest.mark.hostile
PLAIN = ["--drafter", "none", "--dtype", "float32"]
DRAFTED = ["--drafter", "prompt_lookup", "--dtype", "float32"]
TEXTS: dict[str, str] = {
    "spaces": "   ", "lines": "\n\n\n", "a zero": "a\0b", "a mark of byte order": "\ufeffhello",
    "other line ends": "a\r\nb\r",
    "line separators": "a\u2028b\x85c", "the other way round": "\u202eabc",
    "combined": "e\u0301" * 20,
    "emoji": "\U0001f469\u200d\U0001f4bb",
    "special tokens": "<|endoftext|></s><s>[INST]", "markup": "[bold]not bold[/bold] [link=x]",
    "escapes": "\x1b[31mred\x1b[0m",
    "a template": "{{ 7 * 7 }} {% raise %}", "a path": "../../etc/passwd", "one letter": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts_from_standard_input(name: str, tmp_path: Path, plain: Any) -> None:
    ended = run(["generate", "demo", "-", "-n", "8", *DRAFTED], tmp_path, TEXTS[name].encode())
    ended.check_clean()
    answer = plain(TEXTS[name].removeprefix("\ufeff")).text.encode()  # a byte order mark is no text
    assert (ended.status, ended.out) == (0, answer), ended


@pytest.mark.parametrize(
    "prompt", ["-5 degrees", "-> x", "--", "-x", "--foo", "--help", "- item", "-n"]
)
def test_prompts_that_look_like_options(prompt: str, tmp_path: Path, plain: Any) -> None:
    ended = run(["generate", "demo", "-n", "8", *DRAFTED, "--", prompt], tmp_path)
    assert (ended.status, ended.out) == (0, plain(prompt).text.encode()), ended


@pytest.mark.parametrize(
    "words", ["--stop=-", "--stop -", "--stop=-x", "--stop='- '", "--stop=--", "--stop '-> '"]
)
def test_stop_strings_that_begin_with_a_dash(words: str, tmp_path: Path, plain: Any) -> None:
    text = "3 - 2 -x-- -> 1, "
    ended = run(["generate", "demo", text, "-n", "24", *DRAFTED, *shlex.split(words)], tmp_path)
    stop = shlex.split(words)[-1].removeprefix("--stop=")
    assert (ended.status, ended.out) == (
        0,
        plain(text, max_new_tokens=24, stop=stop).text.encode(),
    ), ended


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "UTF-8"),
        (b"a\xc3", "UTF-8"),
        (b"\xed\xa0\x80", "UTF-8"),
        (b"", "no token"),
        (b"word " * 60_000, "tokens"),
        (CLOSED, "closed"),
    ],
)
def test_unusable_standard_input_is_refused(content: Any, words: str, tmp_path: Path) -> None:
    run(["generate", "demo", "-", "-n", "8", *PLAIN], tmp_path, content).check_refused(words)


CHATS: dict[str, bytes] = {
    "nothing": b"", "an empty line": b"\n", "no line end": b"hello",
    "not UTF-8": b"\xff\nhello\n", "a zero": b"a\0b\n",
    "an unknown command": b"/hope\nhello\n", "save without a name": b"/save\nhello\n",
    "save nowhere": b"/save /proc/x\nhello\n",
    "save on a full disk": b"/save /dev/full\nhello\n", "reset with a word": b"/reset now\nhello\n",
    "quit early": b"/quit\nhello\n",
    "too long": b"word " * 20_000 + b"\nhello\n", "a path": b"/etc/passwd\n", "spaces": b"   \n",
    "help": b"/help\n",
}  # fmt: skip


@pytest.mark.parametrize("name", CHATS)
def test_unusable_chat_input_keeps_the_conversation(name: str, tmp_path: Path, llm: Any) -> None:
    """Unusable input gives one error line and does not affect the conversation."""
    ended = run(["chat", "-n", "8", *DRAFTED], tmp_path, CHATS[name])
    ended.check_clean()
    assert ended.status == 0, ended
    has_answer = (
        CHATS[name].endswith(b"hello\n") and name not in ("quit early",)
    ) or name == "no line end"
    answer = _talk(llm, "hello") + b"\n" if has_answer else b""
    assert ended.out == answer or name in ("a zero", "a path"), ended
    bad = {
        "not UTF-8",
        "an unknown command",
        "save without a name",
        "save nowhere",
        "save on a full disk",
        "too long",
    }
    assert sum(line.startswith("error: ") for line in ended.errors) == (name in bad), ended
    assert listing(tmp_path) == {}


def _talk(llm: Any, text: str) -> bytes:
    from paceline import SamplingParams

    answer: bytes = llm.chat([{"role": "user", "content": text}], SamplingParams(8)).text.encode()
    return answer


OUTPUTS = [
    "drafters",
    "--help",
    "generate --help",
    "--version",
    "doctor",
    "datastore info demo",
    "cache list",
    "generate demo hi -n 8 --drafter none",
    "generate demo hi there -n 4 --drafter none",
    "generate demo hi -n 4 --drafter none --output -",
    "replay @answers.jsonl --nodes 4 --drafters prompt_lookup --json -",
]


@pytest.mark.parametrize("kind", [CLOSED, ABANDONED, FULL])
@pytest.mark.parametrize("words", OUTPUTS)
def test_unusable_standard_output(words: str, kind: str, tmp_path: Path, valid_files: Path) -> None:
    ended = run(
        [word.replace("@", f"{valid_files}/") for word in shlex.split(words)], tmp_path, stdout=kind
    )
    ended.check_clean()
    assert ended.status == {CLOSED: 0, ABANDONED: 141, FULL: 2}[kind], ended
    if kind == FULL:
        assert [line for line in ended.errors if line.startswith("error: ")] == [
            ended.err.splitlines()[-1]
        ], ended
        assert "No space left" in ended.err, ended
    assert listing(tmp_path) == {}


@pytest.mark.parametrize("kind", [CLOSED, ABANDONED, FULL])
@pytest.mark.parametrize(
    "words",
    ["generate demo hi -n 8 --drafter none", "generate demo hi -n -1", "chat --drafter none"],
)
def test_unusable_standard_error(words: str, kind: str, tmp_path: Path, plain: Any) -> None:
    ended = run(shlex.split(words), tmp_path, stderr=kind)
    assert ended.status in (0, 2, 141), ended
    assert (
        ended.status == 2
        or "generate demo hi -n 8" not in words
        or ended.out in (b"", plain("hi").text.encode())
    ), ended


INTERRUPTED = [
    "generate demo 'Once upon a time' -n 400 --drafter none --ignore-eos",
    "generate demo one two three -n 200 --drafter none --ignore-eos --output -",
]


@pytest.mark.parametrize("words", INTERRUPTED)
def test_ctrl_c_during_generation(words: str, tmp_path: Path) -> None:
    ended = run(shlex.split(words), tmp_path, interrupt=signal.SIGINT)
    ended.check_clean()
    assert ended.status in (0, 130), ended
    lines = ended.out.splitlines() if "--output" in words else []
    assert all(json.loads(line)["text"] for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("after", [0.3, 1.5])
def test_an_interrupted_recording_can_be_resumed(
    number: int, after: float, tmp_path: Path, valid_files: Path
) -> None:
    out = tmp_path / "a.jsonl"
    words = [
        "record",
        "--out",
        str(out),
        "--limit",
        "3",
        "--batch",
        "1",
        "-n",
        "12",
        "--top",
        "4",
        "--dtype",
        "float32",
    ]
    process = start_command("paceline", *words)
    time.sleep(after)
    with suppress(ProcessLookupError):  # the process may have ended already
        os.kill(process.pid or 0, number)
    process.join(60)
    assert process.exitcode in (0, 130, -number)
    ended = run(words, tmp_path)
    assert ended.status == 0, ended
    assert read_traces(out) == read_traces(valid_files / "answers.jsonl")[:3]


def test_output_to_an_abandoned_pipe_ends_with_141(tmp_path: Path) -> None:
    ended: CommandResult = run(
        ["generate", "demo", "a", "b", "c", "-n", "4", *PLAIN, "--output", "-"],
        tmp_path,
        stdout=ABANDONED,
    )
    ended.check_clean()
    assert ended.status == 141, ended
