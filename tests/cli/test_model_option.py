"""Test the target model as an argument, and as the option `--model`."""

from __future__ import annotations

import pytest

from paceline.cli import paper
from paceline.cli.commands import COMMANDS as COMMAND_LIST
from paceline.cli.main import app
from paceline.cli.model_option import takes_model, with_model_first
from tests.support.cli import usage_error

# Commands, and words that complete their command lines.
COMMANDS = {
    "generate": ["x"],
    "chat": ["-n", "3"],
    "serve": ["--port", "0"],
    "bench": ["--limit", "3"],
    "verify": ["--drafter", "none"],
    "doctor": ["--measure"],
    "record": ["--out", "o"],
    "prompts": ["--count", "3"],
    "draft train": ["--recording", "r", "--out", "o"],
    "draft evaluate": ["draft", "--recording", "r"],
    "draft-head train": ["--recording", "r", "--out", "o"],
    "head record": ["--out", "o"],
    "head calibrate": ["head", "recording", "--limit", "3"],
}
SPELLINGS = (["--model", "some/model"], ["-m", "some/model"], ["--model=some/model"])


def test_the_list_names_every_command_with_a_target() -> None:
    expected = {name for name in COMMAND_LIST if takes_model(app[name])}
    for name in COMMAND_LIST:
        subcommands = [word for word in app[name] if not word.startswith("-")]
        expected |= {f"{name} {word}" for word in subcommands if takes_model(app[name][word])}
    assert expected == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_all_spellings_of_the_model_are_equal(command: str) -> None:
    words, rest = command.split(), COMMANDS[command]
    expected = app.parse_args([*words, "some/model", *rest])[1]
    assert expected.args[0] == "some/model"
    for spelling in SPELLINGS:
        for line in ([*words, *spelling, *rest], [*words, *rest, *spelling]):
            bound = app.parse_args(with_model_first(app, line))[1]
            assert (bound.args, bound.kwargs) == (expected.args, expected.kwargs)


@pytest.mark.parametrize("name", ["lookahead", "ouroboros", "specdec_pp", "sssd"])
def test_a_paper_takes_both_spellings(name: str) -> None:
    papers = paper._papers_app()
    expected = papers.parse_args([name, "some/model", "--limit", "3"])[1]
    for spelling in SPELLINGS:
        line = with_model_first(papers, [name, "--limit", "3", *spelling])
        bound = papers.parse_args(line)[1]
        assert (bound.args, bound.kwargs) == (expected.args, expected.kwargs)


@pytest.mark.parametrize(
    "words",
    [
        ["one", "two", "--model", "some/model"],
        ["-m", "some/model", "one", "two"],
        ["one", "-m=some/model", "two"],
        ["one", "--model", "some/model", "--", "two"],
    ],
)
def test_prompts_follow_the_option(words: list[str]) -> None:
    bound = app.parse_args(with_model_first(app, ["generate", *words]))[1]
    assert bound.args == ("some/model", "one", "two")


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "demo", "--", "-m", "--model"],
        ["generate", "demo", "-m is a flag"],
        ["replay", "-m", "demo"],
        ["datastore", "-m"],
        ["-m", "demo"],
        ["generate", "--help", "-m", "demo"],
        ["bench", "-m", "--help"],
        ["paper", "lookahead", "-m", "demo"],
    ],
)
def test_other_words_stay_as_they_are(words: list[str]) -> None:
    assert with_model_first(app, words) == words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["chat", "-m", "a", "--model", "b"], "the model is given twice: 'a' and 'b'. Keep one."),
        (["serve", "a", "-m", "b"], "Unexpected argument 'a': --model already names the model."),
        (["draft", "evaluate", "a", "b", "-m", "c", "--recording", "r"], "argument 'b': --model"),
        (["paper", "lookahead", "a", "-m", "b"], "argument 'a': --model already names the model."),
        (["bench", "-m"], "-m has no value. Add a model, as in -m demo."),
        (["bench", "--model="], "--model has no value."),
        (["bench", "--model", "--limit", "3"], "--model has no value."),
        (["replay", "--model", "demo"], "Unknown option: --model."),
        (["generate", "--model", "demo"], "no prompt was given."),
    ],
)
def test_a_wrong_model_is_one_clear_line(
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert expected in usage_error(words, monkeypatch, capsys)


def test_the_help_shows_the_argument_with_a_remark() -> None:
    for words in map(str.split, COMMANDS):
        command = app
        for word in words:
            command = command[word]
        arguments = command.assemble_argument_collection(parse_docstring=True)
        assert (arguments[0].parameter.help or "").endswith("Also --model, -m.")
        assert not any("--model" in argument.names for argument in arguments if argument.show)
