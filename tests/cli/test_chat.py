"""`paceline chat`: its commands, and Ctrl-C, which stops an answer and not the program."""

from __future__ import annotations

import builtins
import io
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.cli import chat, reading
from paceline.cli.chat import Conversation
from paceline.cli.main import run
from paceline.errors import ConfigError, PacelineError
from paceline.llm import Chunk

SYSTEM = {"role": "system", "content": "Be kind."}


class Said:
    """In the place of a model: says what it was asked, and stops where it is told."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []

    def chat_prompt(self, messages: list[dict[str, str]]) -> Any:
        if messages[-1]["content"] == "too long":
            raise PacelineError("it does not fit")
        self.asked.append(messages)
        return messages[-1]["content"]

    def stream(self, prompt: str, params: SamplingParams) -> Generator[Chunk, None, None]:
        yield Chunk(f"{prompt}!", [], [], [(f"{prompt}!", False)])
        if prompt == "stop":
            raise KeyboardInterrupt


@pytest.fixture
def conversation() -> Conversation:
    return Conversation(Said(), SamplingParams(), [SYSTEM])  # type: ignore[arg-type]


def test_a_conversation_and_its_commands(conversation: Conversation, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert conversation.take("hello")
    assert conversation.take(" /etc is what?")  # a space makes it a message
    assert conversation.take("/etc/passwd is what?")
    assert [one["content"] for one in conversation.messages[1::2]] == ["hello", " /etc is what?", "/etc/passwd is what?"]
    assert conversation.take(f"/save {tmp_path / 'talk.jsonl'}")
    assert json.loads((tmp_path / "talk.jsonl").read_text()) == {"messages": conversation.messages}
    assert conversation.take("/reset now")
    assert conversation.messages == [SYSTEM]
    assert conversation.take("/help")
    assert conversation.take("  ")
    told = capfd.readouterr()
    assert told.out == "hello! /etc is what?!/etc/passwd is what?!"
    assert all(word in told.err for word in ("is forgotten", "/save FILE", "wrote "))
    assert not conversation.take(" /quit ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/hepl", "Did you mean '/help'"),
        ("/save", "got no name"),
        ("/save no/such\0name", "cannot write"),
        ("too long", "not fit"),
    ],
)
def test_what_cannot_be_done_leaves_the_conversation(line: str, message: str, conversation: Conversation) -> None:
    conversation.take("hello")
    before = list(conversation.messages)
    with pytest.raises(PacelineError, match=message):
        conversation.take(line)
    assert conversation.messages == before


def test_a_stopped_answer_is_part_of_the_conversation(conversation: Conversation, capfd: pytest.CaptureFixture[str]) -> None:
    assert conversation.take("stop")
    assert conversation.messages[-1] == {"role": "assistant", "content": "stop!"}
    assert "stopped" in capfd.readouterr().err


def test_ctrl_c_on_a_terminal_ends_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    lines = iter(["hello", KeyboardInterrupt, "too long", "/nothing", "again", None])

    def read() -> Any:
        line = next(lines)
        if line is KeyboardInterrupt:
            raise line
        return line

    said = Said()
    monkeypatch.setattr(chat, "build_llm", lambda models, drafter: said)
    monkeypatch.setattr(chat, "lines_of", lambda words: read)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert run(["chat", "--system", "Be kind.", "--stop", "x"]) == 0
    assert [messages[-1]["content"] for messages in said.asked] == ["-", "hello", "again"]
    assert said.asked[-1][0] == SYSTEM
    assert "Ctrl-D or /quit leaves" in capfd.readouterr().err


def test_lines_are_read_with_and_without_an_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\r\n\ntwo \xff\nlast")))
    read = reading.lines_of([])
    assert (read(), read()) == ("one", "")
    with pytest.raises(ConfigError, match="expected text in UTF-8"):
        read()
    assert (read(), read()) == ("last", None)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    typed = iter(["typed"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(typed, None) or (_ for _ in ()).throw(EOFError))
    read = reading.lines_of([])
    assert (read(), read()) == ("typed", None)


def test_the_editor_edits_pastes_and_remembers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("prompt_toolkit", reason="of the extra paceline[chat]")
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        read = reading.lines_of(["/help"])
        keys.send_text("helo\x1b[Dl\r")  # left, and the letter that was missing
        assert read() == "hello"
        keys.send_text("\x1b[200~first\nsecond\x1b[201~\r")
        assert read() == "first\nsecond"
        keys.send_text("\x1b[A\x1b[A\r")
        assert reading.lines_of([])() in ("hello", "first\nsecond")
        keys.send_text("\x03")
        with pytest.raises(KeyboardInterrupt):
            read()
        keys.send_text("\x04")
        assert read() is None


def test_a_model_without_a_template_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("demo", "none", dtype="float32")
    monkeypatch.setattr(llm.tokenizer, "chat_template", None)
    with pytest.raises(ConfigError, match="without chat template"):
        Conversation(llm, SamplingParams(), [])
