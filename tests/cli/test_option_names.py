"""Test that error messages name options as the user types them."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from paceline.cli.main import app
from paceline.cli.option_names import option_names, with_option_names
from paceline.errors import ConfigError
from paceline.training.inputs import hold_out
from tests.cli.test_options import COMMANDS
from tests.support.cli import usage_error


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("\0LLM: max_length\0: got 1; expected 2.", "--max-length: got 1; expected 2."),
        ("\0max_new_tokens\0: got -1.", "-n: got -1."),
        ("answers 'a.jsonl': \0seed\0: got 1.", "answers 'a.jsonl': --seed: got 1."),
        ("Pass \0batch_invariant=False\0.", "Pass --batch-invariant off."),
        ("\0weights='q8_0'\0: got a GGUF file.", "--weights q8_0: got a GGUF file."),
        ("Pass \0draft_model=DIR\0, or a file.", "Pass --draft-model DIR, or a file."),
        ("Reduce \0max_new_tokens\0.", "Reduce -n."),
        ("Convert it (\0unpack=True\0).", "Convert it (--unpack)."),
        ("Leave it packed (\0unpack=False\0).", "Leave it packed (--no-unpack)."),
        ("\0bench: batch\0: got 0 with seed=3.", "bench: batch: got 0 with seed=3."),
    ],
)
@pytest.mark.parametrize("flag", ["--unpack", "--no-unpack"])
def test_settings_become_options(message: str, expected: str, flag: str) -> None:
    words = ["generate", "demo", "hi", "-n", "3", flag]
    error = pickle.loads(pickle.dumps(ConfigError(message)))
    assert with_option_names(error, app, words) == expected
    assert str(error) == message.replace("\0", "")


def test_settings_of_drafters_do_not_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "demo", "--drafter", "sssd:max_nodes=-1", "--max-nodes", "8"]
    assert "error: sssd: max_nodes: got -1" in usage_error(words, monkeypatch, capsys)


def test_too_few_answers_to_hold_any_out() -> None:
    with pytest.raises(ConfigError, match="got 3 answers; expected at least 16") as caught:
        hold_out("draft-head train", [1, 2, 3], 16)
    shown = with_option_names(caught.value, app, ["draft-head", "train", "demo"])
    assert shown.endswith("Record more answers, or pass a smaller --held-out N.")


def test_every_message_marks_options() -> None:
    options = set().union(*(option_names(app, words) for words in COMMANDS))
    for path in Path("paceline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
                message = ast.unparse(node.args[0]) if node.args else ""
                _, *marked = message.split(r"\x00")
                assert len(marked) % 2 == 0, (path, message)
                names = [part.partition("=")[0].rpartition(": ")[2] for part in marked[::2]]
                assert {name for name in names if name[0] != "{"} <= options, (path, message)
