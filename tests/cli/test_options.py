"""Test options: names are unique, and help needs no import of torch."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

from paceline.bench.settings import BenchConfig
from paceline.cli import main
from paceline.cli.chat import ChatSampling
from paceline.cli.commands import COMMANDS as COMMAND_LIST
from paceline.cli.commands import GROUPS
from paceline.cli.main import app, run
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import REGISTRY
from paceline.errors import ConfigError
from paceline.training.acceptance_head.settings import RecordConfig
from paceline.util.options import ModelOptions, changed, flat
from tests.support.cli import call

COMMANDS = [
    *(
        ["generate"],
        ["chat"],
        ["bench"],
        ["prompts"],
        ["record"],
        ["replay"],
        ["drafters"],
        ["demo"],
        ["paper"],
    ),
    *(
        ["verify"],
        ["doctor"],
        ["serve"],
        ["draft", "train"],
        ["draft", "evaluate"],
        ["draft-head", "train"],
    ),
    *(["cache", name] for name in ("list", "clear")),
    *(["datastore", name] for name in ("build", "add", "info", "verify")),
    *(["head", name] for name in ("record", "train", "evaluate", "calibrate")),
]


def test_the_list_of_commands_has_their_summaries() -> None:
    for name, summary in COMMAND_LIST.items():
        assert (app[name].help or "").partition("\n")[0] == summary


def test_every_command_is_under_one_heading() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMAND_LIST)


def test_help_and_errors_import_no_torch() -> None:
    """Help and errors are fast, since no slow module is imported."""
    code = f"""
import sys
from paceline.cli.main import run
for words in {[[], *COMMANDS]!r}:
    run([*words, "--help"])
    try:
        run([*words, "--no-such-option"])
    except SystemExit as end:
        assert end.code == 2
assert run(["drafters"]) == 0
for words in (
    ["genrate"],
    ["generate", "demo", "x", "-t", "-1"],
    ["bench", "--json", "no/such/folder"],
    ["replay", "x", "--limit", "0"],
):
    try:
        assert run(words) == 2
    except (SystemExit, ValueError):
        pass
assert not {{"torch", "transformers", "numba"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stderr.count("error: Unknown") == len(COMMANDS) + 2
    assert all(f"{name} " in done.stdout for name in COMMAND_LIST)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_has_one_name_and_a_help_text(words: list[str]) -> None:
    command = app
    for word in words:
        command = command[word]
    found = command.assemble_argument_collection(parse_docstring=True)
    shown = [argument for argument in found if argument.show and not argument.children]
    names = [name for argument in shown for name in argument.names]
    assert len(set(names)) == len(names)
    for argument in shown:
        text, default = (
            " ".join((argument.parameter.help or "").split()),
            argument.field_info.default,
        )
        assert text, argument.name
        if argument.required or isinstance(default, bool):
            continue
        # The text states the default only where cyclopts does not show it.
        shows_default = default not in (None, (), "", argument.field_info.empty)
        if argument.name not in ("PROMPT", "OPTION"):
            assert ("Default" in text) != shows_default, argument.name
        if isinstance(default, int | float) and argument.name != "--seed":
            assert re.search(r"at least|from |above |multiple of", text), argument.name


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_example_of_a_command_is_valid(words: list[str]) -> None:
    command = app
    for word in words:
        command = command[word]
    example = re.search(r"^ *Example: paceline (.*)$", command.help, re.MULTILINE)
    if example is None:
        assert words in (["drafters"], ["demo"], ["cache", "list"], ["cache", "clear"])
        return
    assert len(example[0].strip()) <= 80
    assert example[1].startswith(" ".join(words))
    app.parse_args(shlex.split(example[1]))


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["generate"], "generate MODEL [PROMPT...] [OPTIONS]"),
        (["chat"], "chat [MODEL] [OPTIONS]"),
        (["datastore"], "datastore COMMAND"),
        (["datastore", "build"], "datastore build PATH INPUT... --tokenizer STR [OPTIONS]"),
        (["head", "calibrate"], "head calibrate MODEL HEAD RECORDING... [OPTIONS]"),
        (["cache", "list"], "cache list"),
        (["paper"], "paper COMMAND"),
    ],
)
def test_the_usage_names_every_argument(
    words: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*words, "--help"])
    assert capsys.readouterr().out.startswith(f"Usage: paceline {usage}\n\n")


@pytest.mark.parametrize("command", ["generate", "serve", "bench", "verify", "record"])
@pytest.mark.parametrize(
    ("words", "value"), [([], None), (["--unpack"], True), (["--no-unpack"], False)]
)
def test_conversion_of_gguf_files_has_three_states(
    command: str, words: list[str], value: bool | None
) -> None:
    arguments = {"generate": ["hello"], "record": ["--out", "o"]}.get(command, [])
    _, bound, _ = app.parse_args([command, "demo", *arguments, *words])
    found = bound.kwargs.get("models", bound.kwargs.get("config", BenchConfig()))
    assert flat(found)["unpack"] is value


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (["head", "train", "r"], "scalars", False),
    ],
)
def test_an_option_that_is_on_can_be_turned_off(words: list[str], option: str, value: bool) -> None:
    name = option.replace("_", "-")
    _, bound, _ = app.parse_args([*words, "--out", "o", f"--no-{name}"])
    assert getattr(bound.kwargs["config"], option) is value


@pytest.mark.parametrize(
    ("command", "arguments", "option"),
    [
        (["generate"], ["demo", "one", "two"], ["-n", "3"]),
        (["replay"], ["one.jsonl", "two.jsonl"], ["--nodes", "4"]),
        (["datastore", "build"], ["store", "one.jsonl", "two.jsonl"], ["--tokenizer", "demo"]),
        (["datastore", "add"], ["store", "one.jsonl", "two.jsonl"], ["--tokenizer", "demo"]),
        (["head", "train"], ["one", "two"], ["--out", "head"]),
        (["head", "evaluate"], ["head", "one", "two"], ["--threads", "1"]),
        (["head", "calibrate"], ["demo", "head", "one", "two"], ["--limit", "1"]),
    ],
)
def test_options_may_be_anywhere_among_the_arguments(
    command: list[str], arguments: list[str], option: list[str]
) -> None:
    for index in range(len(arguments) + 1):
        _, bound, _ = app.parse_args([*command, *arguments[:index], *option, *arguments[index:]])
        assert [str(argument) for argument in bound.args] == arguments


@pytest.mark.parametrize("config", [BenchConfig(), RecordConfig()])
def test_a_configuration_is_a_flat_list_of_options(config: Any) -> None:
    values = flat(config)
    assert changed(config, **values) == config
    other = changed(config, model="some/model", limit=3, max_new_tokens=7, batch=2)
    assert (
        other.models.model,
        other.selection.limit,
        other.sampling.max_new_tokens,
        other.batch,
    ) == ("some/model", 3, 7, 2)
    assert flat(other) == {
        **values,
        "model": "some/model",
        "limit": 3,
        "max_new_tokens": 7,
        "batch": 2,
    }
    with pytest.raises(ConfigError, match=r"no option 'modl'.*'model'"):
        changed(config, modl="x")


def test_a_command_may_change_one_default() -> None:
    assert flat(ChatSampling()) == {**flat(SamplingParams()), "max_new_tokens": 256}
    _, bound, _ = app.parse_args(["chat", "-t", "0.5"])
    assert bound.kwargs["sampling"] == ChatSampling(temperature=0.5)
    _, bound, _ = app.parse_args(["generate", "a", "x", "-d", "b"])
    assert bound.kwargs["models"] == ModelOptions(draft_model="b")
    assert [*bound.args] == ["a", "x"]


@pytest.mark.parametrize("words", [["generate", "own", "a"], ["bench", "own"], ["doctor", "own"]])
def test_too_many_threads_get_a_note(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "usable_cores", lambda: 2)
    for threads, count in (("2", 0), ("3", 1)):
        with pytest.raises(ConfigError):
            call(*words, "--threads", threads)
        note = f"warning: --threads {threads} exceeds the 2 processors of this process; more"
        assert capsys.readouterr().err.count(note) == count


def test_a_closed_pipe_is_silent() -> None:
    code = f"{sys.executable} -m paceline --help | true"
    done = subprocess.run(code, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_drafters_of_the_demo_models_run_by_default() -> None:
    words = ("--baselines", "none", "--limit", "1", "-n", "2", "--threads", "1")
    status, output = call("bench", "demo", *words)
    assert status == 0
    own = {name for name, entry in REGISTRY.items() if entry.source == "paceline"}
    assert {name for name in own if not re.search(rf"^{name}\b", output, re.MULTILINE)} == {
        "state_head"
    }
