"""Implement the command `paceline serve`."""

from __future__ import annotations

import logging
import os
import socket
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline import demo
from paceline.cli.loading import build_llm
from paceline.cli.options import (
    WITHOUT_MODEL,
    EngineOptions,
    TargetModel,
    flattened,
    with_known_types,
)
from paceline.cli.settings import WARM_UP_TOKENS
from paceline.cli.show import print_note
from paceline.core.argument_checks import require
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import check_spec
from paceline.errors import ConfigError, install_command
from paceline.serve.settings import Settings
from paceline.serve.sockets import listen
from paceline.util.config import require_range
from paceline.util.options import ModelOptions
from paceline.util.text_files import read_text

if TYPE_CHECKING:
    from fastapi import FastAPI

    from paceline.llm import LLM

_NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance")
_KEYS = "PACELINE_API_KEYS"
_SIGNAL_STATUS = 128  # added to a signal's number to form the exit status

flattened("Limits")(Settings)


@flattened("Address and keys")
@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Address of the server, and the API keys that it accepts.

    Attributes:
        host: Address to listen on; 0.0.0.0 means all addresses of this machine.
        port: Port to listen on; from 0 to 65535; 0 chooses a free port.
        api_key: API key that the server accepts; repeatable. Each request must contain one of the
            server's API keys. Keys are also read from PACELINE_API_KEYS, separated by commas.
            Default: no key is required.
        api_key_file: File with API keys, one per line. Default: none.

    Raises:
        ConfigError: A value is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = ()
    api_key_file: Path | None = None

    def __post_init__(self) -> None:
        require_range("serve", "port", self.port, 0, 65535)


@flattened("Engine")
@with_known_types
@dataclass(frozen=True, slots=True)
class ServerEngine(EngineOptions):
    """Options for the server's engine and its KV cache.

    Attributes:
        cache_gib: Maximum size of the KV cache in GiB; above 0. If the cache is full, requests
            wait. Default: most of the available memory.
        keep_prefixes: Number of finished requests whose KV cache is kept, so that prompts with the
            same prefix can reuse it; at least 0; 0 disables prefix caching.

    Raises:
        ConfigError: A value is out of range.
    """

    cache_gib: float | None = None
    keep_prefixes: int = 32

    def __post_init__(self) -> None:
        EngineOptions.__post_init__(self)  # super() does not work in a class with slots
        require_range("serve", "keep_prefixes", self.keep_prefixes, 0)
        if self.cache_gib is not None:
            require(self.cache_gib > 0, "cache_gib", self.cache_gib, "a positive number of GiB")


def serve(
    model: TargetModel,
    /,
    *,
    engine: ServerEngine = ServerEngine(),
    listen_on: ListenOptions = ListenOptions(),
    settings: Settings = Settings(),
    models: Annotated[ModelOptions, WITHOUT_MODEL] = ModelOptions(),
) -> int:
    """Serve a model over an OpenAI-compatible HTTP API.

    After Ctrl-C or SIGTERM, the server prints the number of open requests, finishes them and then
    stops. A second signal stops the server immediately.

    Example: paceline serve smollm2 --port 8080
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"serve: the packages {', '.join(missing)} are not installed. Run:"
            f" {install_command('serve')}."
        )
    keys = _keys(listen_on)
    chosen = replace(models, model=model)
    _check_names(chosen, engine, settings)
    listener = _listen(listen_on.host, listen_on.port)
    try:
        from paceline.serve.app import create_app

        llm = _warm_llm(chosen, engine, settings.max_batch)
        named_settings = (
            settings if settings.served_name else replace(settings, served_name=(model,))
        )
        app = create_app(llm, named_settings, keys)
        host, port = listener.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        print_note(
            f"batch invariance is {'on' if llm.invariance.on else 'off'}: {llm.invariance.reason}"
        )
        print_note(f"{model} with {engine.drafter} at http://{address}:{port}/v1; Ctrl-C stops it")
        return _run(app, listener)
    finally:
        listener.close()


def _check_names(models: ModelOptions, engine: ServerEngine, settings: Settings) -> None:
    """Check the drafter specs and the names of the parsers before the model is loaded.

    Raises:
        ConfigError: A name is unknown, a spec is invalid, or a draft model is missing.
    """
    from paceline.parsing.answer_format import check_parsers

    has_draft_model = demo.draft_name(models.model, models.draft_model) is not None
    for spec in (engine.drafter, *settings.allow_drafter):
        check_spec(spec, has_draft_model)
    check_parsers(settings.tool_call_parser, settings.reasoning_parser)


def _warm_llm(models: ModelOptions, engine: ServerEngine, max_batch: int) -> LLM:
    """Build the server's engine, and warm it up so that no answer is delayed."""
    llm = build_llm(
        models,
        engine.drafter,
        tokenizer=engine.tokenizer,
        max_length=engine.max_length,
        max_batch=max_batch,
        cache_gib=engine.cache_gib,
        keep_prefixes=engine.keep_prefixes,
        on_drafter_error="plain",
    )
    llm.generate([[0, 0]], SamplingParams(WARM_UP_TOKENS, ignore_eos=True))
    llm.finish_draft_head()
    llm.check_loaded_costs()
    return llm


def _run(app: FastAPI, listener: socket.socket) -> int:
    import uvicorn

    from paceline.serve.shutdown import DrainingServer

    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("paceline.serve").setLevel(logging.INFO)
    server = DrainingServer(
        uvicorn.Config(app, log_config=None, access_log=False), app.state.serving.drain
    )
    server.run(sockets=[listener])
    return 0 if server.forced is None else _SIGNAL_STATUS + server.forced


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket before the model is loaded.

    Raises:
        ConfigError: The address is not available.
    """
    try:
        return listen(host, port)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (")[0]
        raise ConfigError(
            f"serve: cannot listen on {host} port {port}: {reason}. Choose another --port or"
            " --host."
        ) from error


def _keys(listen_on: ListenOptions) -> list[str]:
    """Return the API keys from all sources.

    Raises:
        ConfigError: The key file cannot be read or contains no key, or a key is empty.
    """
    keys = [
        *listen_on.api_key,
        *filter(None, (key.strip() for key in os.environ.get(_KEYS, "").split(","))),
    ]
    if listen_on.api_key_file is not None:
        try:
            lines = read_text(listen_on.api_key_file).split("\n")
        except FileNotFoundError as error:
            raise ConfigError(
                f"\0api_key_file\0: got {str(listen_on.api_key_file)!r}; there is no such file."
                " Check the path."
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"\0api_key_file\0: cannot read {str(listen_on.api_key_file)!r}: {error}. Check the"
                " path."
            ) from error
        file_keys = [line.strip() for line in lines if line.strip()]
        if not file_keys:
            raise ConfigError(
                f"\0api_key_file\0: {str(listen_on.api_key_file)!r} contains no key. Add one per"
                " line."
            )
        keys += file_keys
    if not all(keys):
        raise ConfigError(
            "\0api_key\0: the key is empty. Leave the option out if no key is needed."
        )
    return keys
