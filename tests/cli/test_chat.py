"""Test `paceline chat`: commands, the editor, and Ctrl-C."""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from paceline import LLM, SamplingParams
from paceline.cli import chat, prompt_input
from paceline.cli.chat import Conversation
from paceline.cli.main import run
from paceline.core.metrics import Stats
from paceline.drafters import create
from paceline.errors import ConfigError, PacelineError
from paceline.llm import Chunk, Completion

SYSTEM = {"role": "system", "content": "Be kind."}


def answered(text: str, tokens: int, seconds: float) -> Completion:
    return Completion(
        text, [7] * tokens, "stop", Stats(tokens, 1, 0, tokens, 0, 0, 0, [], {}, seconds, True)
    )


class FakeEngine:
    """Fake engine that repeats the last message.

    A response has `tokens` tokens. The simulated speeds in tokens per second are `drafted` with
    the drafter and `plain` without. The message "stop" sends an interrupt.
    """

    def __init__(
        self, drafter: str = "auto", tokens: int = 10, drafted: float = 100.0, plain: float = 100.0
    ) -> None:
        self.requests: list[list[dict[str, str]]] = []
        self.drafter = create(drafter)
        self.tokens, self.drafted, self.plain = tokens, drafted, plain
        self.plain_calls: list[SamplingParams] = []

    def chat_prompt(self, messages: list[dict[str, str]]) -> Any:
        if messages[-1]["content"] == "too long":
            raise PacelineError("it does not fit")
        self.requests.append(messages)
        return messages[-1]["content"]

    def stream(self, prompt: str, params: SamplingParams) -> Generator[Chunk, None, None]:
        yield Chunk(f"{prompt}!", [], [], [(f"{prompt}!", False)])
        if prompt == "stop":
            os.kill(os.getpid(), signal.SIGINT)
        yield Chunk("", [], [], [], answered(f"{prompt}!", self.tokens, self.tokens / self.drafted))

    def generate(self, prompts: list[str], params: SamplingParams) -> list[Completion]:
        self.plain_calls.append(params)
        return [
            answered(prompt, params.max_new_tokens, params.max_new_tokens / self.plain)
            for prompt in prompts
        ]


@pytest.fixture
def conversation() -> Conversation:
    return Conversation(FakeEngine(), SamplingParams(), [SYSTEM])  # type: ignore[arg-type]


def test_chat_commands(
    conversation: Conversation, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert conversation.take("hello")
    assert conversation.take(" /etc is what?")  # a space makes it a message
    assert conversation.take("/etc/passwd is what?")
    assert [one["content"] for one in conversation.messages[1::2]] == [
        "hello",
        " /etc is what?",
        "/etc/passwd is what?",
    ]
    assert conversation.take(f"/save {tmp_path / 'talk.jsonl'}")
    assert json.loads((tmp_path / "talk.jsonl").read_text()) == {"messages": conversation.messages}
    assert conversation.take("/reset now")
    assert conversation.messages == [SYSTEM]
    assert conversation.take("/help")
    assert conversation.take("  ")
    printed = capfd.readouterr()
    assert printed.out == "hello!\n /etc is what?!\n/etc/passwd is what?!\n"
    assert all(word in printed.err for word in ("has been cleared", "/save FILE", "wrote "))
    assert not conversation.take(" /quit ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/hepl", "Did you mean '/help'"),
        ("/save", "file name is missing"),
        ("/save no/such\0name", "cannot write"),
        ("too long", "not fit"),
    ],
)
def test_a_failed_command_keeps_the_conversation(
    line: str, message: str, conversation: Conversation
) -> None:
    conversation.take("hello")
    before = list(conversation.messages)
    with pytest.raises(PacelineError, match=message):
        conversation.take(line)
    assert conversation.messages == before


@pytest.mark.usefixtures("interruptible")
def test_a_stopped_response_stays_in_the_conversation(
    conversation: Conversation, capfd: pytest.CaptureFixture[str]
) -> None:
    assert conversation.take("stop")
    assert conversation.messages[-1] == {"role": "assistant", "content": "stop!"}
    assert "stopped" in capfd.readouterr().err


def test_ctrl_c_on_a_terminal_does_not_end_the_chat(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["hello", KeyboardInterrupt, "too long", "/nothing", "again", None])

    def read() -> Any:
        line = next(lines)
        if line is KeyboardInterrupt:
            raise line
        return line

    engine = FakeEngine()
    monkeypatch.setattr(chat, "build_llm", lambda models, drafter, **options: engine)
    monkeypatch.setattr(chat, "lines_of", lambda words: read)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert run(["chat", "--system", "Be kind.", "--stop", "x"]) == 0
    assert [messages[-1]["content"] for messages in engine.requests] == ["-", "hello", "again"]
    assert engine.requests[-1][0] == SYSTEM
    assert "Ctrl-D or /quit ends the chat" in capfd.readouterr().err


def test_lines_are_read_with_and_without_an_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\r\n\ntwo \xff\nlast")))
    read = prompt_input.lines_of([])
    assert (read(), read()) == ("one", "")
    with pytest.raises(ConfigError, match="expected text in UTF-8"):
        read()
    assert (read(), read()) == ("last", None)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    typed = iter(["typed"])
    monkeypatch.setattr(
        builtins, "input", lambda prompt: next(typed, None) or (_ for _ in ()).throw(EOFError)
    )
    read = prompt_input.lines_of([])
    assert (read(), read()) == ("typed", None)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PipeInput]:
    """Simulate keys typed on a terminal; the history is in `tmp_path`."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


LEFT, UP, TAB, CTRL_C, CTRL_D, ENTER = "\x1b[D", "\x1b[A", "\t", "\x03", "\x04", "\r"
PASTE = "\x1b[200~{}\x1b[201~"


def typed(
    read: Callable[[], str | None], keys: PipeInput, first: str, then: str, expected: str
) -> str | None:
    """Return the line that the editor reads after `first` and, after a delay, `then`.

    History and completions need time, so the delay grows.
    """
    line = None
    for seconds in (0.05, 0.5, 5.0):
        keys.send_text(first)
        later = threading.Timer(seconds, lambda: keys.send_text(f"{then}{ENTER}"))
        later.start()
        line = read()
        later.join()
        if line == expected:
            break
    return line


def test_the_editor_handles_keys_pastes_and_history(keys: PipeInput, tmp_path: Path) -> None:
    read, three = prompt_input.lines_of(["/help", "/reset"]), "first\n\nthird "
    keys.send_text(f"helo{LEFT}l{ENTER}")
    assert read() == "hello"
    keys.send_text(
        f"{PASTE.format(three)}{ENTER}"
    )  # a line end inside a paste does not end the line
    assert read() == three
    assert typed(read, keys, f"/he{TAB}", "", "/help") == "/help"
    keys.send_text(CTRL_C)
    with pytest.raises(KeyboardInterrupt):
        read()
    keys.send_text(CTRL_D)
    assert read() is None
    assert "first" in (tmp_path / "chat_history").read_text()


@pytest.mark.parametrize("writable", [True, False])
def test_the_history_outlives_a_run_if_it_can_be_written(
    keys: PipeInput, tmp_path: Path, writable: bool
) -> None:
    if not writable:
        (tmp_path / "chat_history").mkdir()  # a folder is in the way of the file
    for _ in range(2):
        read = prompt_input.lines_of([])
        keys.send_text(f"hello{ENTER}")
        assert read() == "hello"
        assert typed(read, keys, "", f"{UP}, you", "hello, you") == "hello, you"
    remembered = "hello, you" if writable else ""
    assert typed(prompt_input.lines_of([]), keys, "", UP, remembered) == remembered


@pytest.mark.usefixtures("interruptible")
def test_a_conversation_on_a_terminal(
    keys: PipeInput,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C stops a response or an unfinished line, and the conversation continues."""
    engine, saved = FakeEngine(), tmp_path / "talk.jsonl"
    monkeypatch.setattr(chat, "build_llm", lambda models, drafter, **options: engine)
    lines = [
        "before",
        "/reset now",
        "stop",
        PASTE.format("two\nlines"),
        "/help",
        f"/save {saved}",
        f"never asked{CTRL_C}",
        "last",
    ]
    keys.send_text(
        "".join(line if line.endswith(CTRL_C) else f"{line}{ENTER}" for line in lines) + CTRL_D
    )
    assert run(["chat", "--system", "Be kind."]) == 0
    printed = capfd.readouterr()
    assert [messages[-1]["content"] for messages in engine.requests] == [
        "-",
        "before",
        "stop",
        "two\nlines",
        "last",
    ]
    contents = [message["content"] for message in engine.requests[-1]]
    assert contents == ["Be kind.", "stop", "stop!", "two\nlines", "two\nlines!", "last"]
    assert [
        message["content"] for message in json.loads(saved.read_text())["messages"]
    ] == contents[:-1]
    assert printed.out == "before!\nstop!\ntwo\nlines!\nlast!\n"
    for words in (
        "has been cleared",
        "stopped",
        "show this list",
        f"wrote {saved}",
        "Ctrl-D or /quit ends the chat",
    ):
        assert words in printed.err


@pytest.mark.parametrize(
    ("engine", "advised"),
    [
        (
            FakeEngine("pia", 40, drafted=50.0, plain=100.0),
            "pia gave 50.0 tokens/s, plain decoding 100.0: --drafter none is faster",
        ),
        (
            FakeEngine("pia", 40, drafted=95.0, plain=100.0),
            None,
        ),  # a small difference gives no advice
        (FakeEngine("pia", 40, drafted=150.0, plain=100.0), None),
        (FakeEngine("pia", 10, drafted=50.0, plain=100.0), None),  # too few tokens to tell
        (FakeEngine("none", 40, drafted=50.0, plain=100.0), None),
        (
            FakeEngine("auto:budget=true", 40, drafted=50.0, plain=100.0),
            None,
        ),  # a budget avoids slow drafts
    ],
)
def test_the_end_of_a_chat_advises_faster_plain_decoding(
    engine: FakeEngine,
    advised: str | None,
    keys: PipeInput,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(chat, "build_llm", lambda models, drafter, **options: engine)
    keys.send_text(f"hello{ENTER}/quit{ENTER}")
    assert run(["chat"]) == 0
    errors = capfd.readouterr().err
    assert errors.count("is faster here") == (advised is not None)
    assert (advised or "") in errors
    if advised:
        assert [(one.speculation, one.ignore_eos) for one in engine.plain_calls] == [("none", True)]


def test_a_model_without_a_chat_template_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("demo", "none", dtype="float32")
    monkeypatch.setattr(llm.tokenizer, "chat_template", None)
    with pytest.raises(ConfigError, match="has no chat template"):
        Conversation(llm, SamplingParams(), [])
