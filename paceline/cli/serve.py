"""The command `paceline serve`."""

from __future__ import annotations

import logging
import os
import socket
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.loading import DEFAULT_DRAFTER, build_llm
from paceline.cli.options import flattened, only
from paceline.cli.show import print_note
from paceline.core.request import SamplingParams
from paceline.errors import ConfigError
from paceline.serve.settings import Settings
from paceline.util.config import require_range
from paceline.util.options import ModelOptions
from paceline.util.sockets import listen
from paceline.util.text_files import read_text

if TYPE_CHECKING:
    from fastapi import FastAPI

_NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance")
_KEYS = "PACELINE_API_KEYS"
_WARMING = 4  # tokens
_BY_SIGNAL = 128  # exit status of what a signal has ended, less its number

flattened("Limits")(Settings)


@flattened("Address and keys")
@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where a server listens, and to whom.

    Attributes:
        host: address to listen at; "0.0.0.0" is every one of this machine.
        port: 0 = one that is free.
        api_key: key that requests must have, repeatable; also in PACELINE_API_KEYS, separated by
            commas. Default: none is needed.
        api_key_file: file of keys, one in each line.

    Raises:
        ConfigError: a value out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = ()
    api_key_file: Path | None = None

    def __post_init__(self) -> None:
        require_range("serve", "port", self.port, 0, 65535)


def serve(
    model: Annotated[
        str, Parameter(name="MODEL", help="directory, hub id or GGUF file; 'demo' or 'smollm2'.")
    ],
    /,
    *,
    drafter: str = DEFAULT_DRAFTER,
    tokenizer: str | None = None,
    max_length: int | None = None,
    cache_gib: float | None = None,
    keep_prefixes: int = 32,
    door: ListenOptions = ListenOptions(),
    settings: Settings = Settings(),
    models: Annotated[
        ModelOptions, only("draft_model", "dtype", "device", "threads", "batch_invariant")
    ] = ModelOptions(),
) -> int:
    """Serve a model to OpenAI's clients. Ctrl-C or SIGTERM lets open requests end first, a second
    one does not.

    Args:
        drafter: name:key=value,key=value; see `paceline drafters`.
        tokenizer: directory or hub id; default: the one beside the model.
        max_length: most tokens of prompt and answer; default: the model's context.
        cache_gib: most GiB for the cache of keys and values, for which requests wait; default: most
            of what is available.
        keep_prefixes: ended requests whose keys and values stay in the cache for prompts that begin
            like them.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"serve: got no {', '.join(missing)}; expected the extra 'serve' installed. Run: pip"
            " install 'paceline[serve]'."
        )
    keys = _keys(door)
    listener = _listen(door.host, door.port)
    try:
        from paceline.serve.app import create_app

        llm = build_llm(
            replace(models, model=model),
            drafter,
            tokenizer=tokenizer,
            max_length=max_length,
            max_batch=settings.max_batch,
            cache_gib=cache_gib,
            keep_prefixes=keep_prefixes,
            on_drafter_error="plain",
        )
        llm.generate(
            [[0, 0]], SamplingParams(_WARMING, ignore_eos=True)
        )  # what is compiled at first, no user waits for
        named = settings if settings.served_name else replace(settings, served_name=(model,))
        app = create_app(llm, named, keys)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print_note(
            f"batch invariance is {'on' if llm.invariance.on else 'off'}: {llm.invariance.reason}"
        )
        print_note(f"{model} with {drafter} at http://{shown}:{port}/v1; Ctrl-C ends it")
        return _run(app, listener)
    finally:
        listener.close()


def _run(app: FastAPI, listener: socket.socket) -> int:
    import uvicorn

    from paceline.serve.shutdown import DrainingServer

    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("paceline.serve").setLevel(logging.INFO)
    server = DrainingServer(
        uvicorn.Config(app, log_config=None, access_log=False), app.state.serving.drain
    )
    server.run(sockets=[listener])
    return 0 if server.forced is None else _BY_SIGNAL + server.forced


def _listen(host: str, port: int) -> socket.socket:
    """Take an address before a model is loaded for it.

    Raises:
        ConfigError: it cannot be had.
    """
    try:
        return listen(host, port)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (")[0]
        raise ConfigError(
            f"serve: got {host} port {port}: {reason}; expected a free address of this machine."
            " Choose another --port or --host."
        ) from error


def _keys(door: ListenOptions) -> list[str]:
    """The keys of all sources.

    Raises:
        ConfigError: a file that cannot be read or has none, or an empty key.
    """
    keys = [
        *door.api_key,
        *filter(None, (key.strip() for key in os.environ.get(_KEYS, "").split(","))),
    ]
    if door.api_key_file is not None:
        try:
            lines = read_text(door.api_key_file).split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"api_key_file: got {str(door.api_key_file)!r}, {error}; expected a text file."
                " Check it."
            ) from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise ConfigError(
                f"api_key_file: got {str(door.api_key_file)!r} without a key; expected one in each"
                " line. Add one."
            )
        keys += found
    if not all(keys):
        raise ConfigError(
            "api_key: got an empty one; expected a key. Leave the option out where none is needed."
        )
    return keys
