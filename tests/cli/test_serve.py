"""Test `paceline serve` before it serves: keys, addresses and missing packages."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import serve
from paceline.cli.serve import ListenOptions, _keys, _listen
from paceline.errors import ConfigError
from tests.support.cli import call, usage_error


def test_keys_come_from_options_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("three\n\n four \n")
    monkeypatch.setenv("PACELINE_API_KEYS", "one, two,")
    assert _keys(ListenOptions(api_key=("zero",), api_key_file=tmp_path / "keys")) == [
        "zero",
        "one",
        "two",
        "three",
        "four",
    ]
    assert _keys(ListenOptions()) == ["one", "two"]


@pytest.mark.parametrize(
    "words", [["--api-key", ""], ["--api-key-file", "nowhere"], ["--api-key-file", "/dev/null"]]
)
def test_empty_keys_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        call("serve", "demo", "--port", "0", *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--port", "70000"], "--port: got 70000"),
        (["--max-batch", "0"], "--max-batch: got 0"),
        (["--max-waiting", "-1"], "--max-waiting: got -1"),
        (["--timeout", "-1"], "--timeout: got -1"),
        (["--max-prompt", "0"], "--max-prompt: got 0"),
        (["--max-length", "1"], "--max-length: got 1"),
        (["--keep-prefixes", "-1"], "--keep-prefixes: got -1"),
        (["--cache-gib", "0"], "--cache-gib: got 0.0"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call("serve", "demo", *words)
    assert expected in capsys.readouterr().err


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"no\.such\.host\.invalid port 0: .*Choose another --port or --host"
    ):
        call("serve", "demo", "--host", "no.such.host.invalid", "--port", "0")


def test_a_used_port_is_reported_before_loading_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        serve, "build_llm", lambda *arguments, **options: pytest.fail("the model was loaded")
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ConfigError, match="Address already in use"),
    ):
        call("serve", "demo", "--port", str(other.getsockname()[1]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--drafter", "nope"], "there is no drafter 'nope'"),
        (["--drafter", "pia:max_nodes=0"], "pia: max_nodes: got 0"),
        (["--allow-drafter", "nope"], "there is no drafter 'nope'"),
        (["--tool-call-parser", "hermse"], "--tool-call-parser: got 'hermse'"),
        (["--reasoning-parser", "thnk"], "--reasoning-parser: got 'thnk'"),
    ],
)
def test_options_are_checked_before_the_port_is_opened(
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(serve, "listen", lambda host, port: pytest.fail("the port was opened"))
    assert expected in usage_error(["serve", "demo", *words], monkeypatch, capsys)


def test_packets_of_a_response_are_sent_without_delay() -> None:
    """A response has several packets: its head, its body, and streamed tokens."""
    with (
        _listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_missing_draft_model_is_named_by_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "demo", "--port", "0", "--draft-model", "gone"]
    assert "error: --draft-model: cannot load" in usage_error(words, monkeypatch, capsys)


def test_a_missing_extra_gives_installation_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"fastapi.* not installed\. Run: pip install '\.\[serve\]' in a clone"
    ):
        call("serve", "demo")


def test_a_failed_model_load_frees_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise ConfigError("no such model")

    monkeypatch.setattr(serve, "build_llm", refuse)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ConfigError, match="no such model"):
        call("serve", "demo", "--port", str(port))
    socket.create_server(("127.0.0.1", port)).close()
