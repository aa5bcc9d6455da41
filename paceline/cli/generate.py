"""Implement the command `paceline generate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.answers import CliPrompt, answer_all
from paceline.cli.loading import DEFAULT_DRAFTER, build_llm
from paceline.cli.options import ParallelOptions
from paceline.cli.parallel import joined_ranks, refuse_standard_input
from paceline.cli.prompt_input import read_prompt
from paceline.cli.show import INTERRUPTED, print_stream
from paceline.core.request import SamplingParams
from paceline.errors import ConfigError
from paceline.text.conversations import checked_messages, text_of
from paceline.text.tokens import require_text
from paceline.util.files import parse_json, require_writable
from paceline.util.options import ModelOptions
from paceline.util.text_files import read_text

if TYPE_CHECKING:
    from paceline.llm import LLM

_FIELDS = ("prompt", "text", "turns", "messages")


def generate(
    *prompts: Annotated[str, Parameter(name="PROMPTS")],
    drafter: str = DEFAULT_DRAFTER,
    chat: bool = False,
    system: str | None = None,
    file: Path | None = None,
    output: Path | None = None,
    tokenizer: str | None = None,
    max_length: int | None = None,
    models: ModelOptions = ModelOptions(),
    sampling: SamplingParams = SamplingParams(),
    parallel: ParallelOptions = ParallelOptions(),
) -> int:
    """Answer prompts; one prompt is streamed, several run as a batch.

    Args:
        prompts: Prompts; '-' reads one from standard input. Put '--' before a prompt that looks
            like an option.
        drafter: Drafter spec, name:key=value,key=value; see `paceline drafters`.
        chat: Apply the chat template to each prompt.
        system: System message; implies --chat.
        file: File of more prompts: JSON lines with prompt, text, turns or messages (and id), or one
            per text line.
        output: File for the answers as JSON lines, one per prompt; '-' is standard output.
        tokenizer: Tokenizer: directory or hub id. Default: the model's own.
        max_length: Maximum tokens of prompt and answer. Default: the model's context length.
    """
    if output is not None:
        require_writable(output)
    file_prompts = [] if file is None else read_prompts(file)
    if not prompts and not file_prompts:
        raise ConfigError(
            "generate: no prompt was given. Add prompts, or a file of prompts with --file."
        )
    chat = chat or system is not None
    with joined_ranks(parallel, models.device) as ranks:
        refuse_standard_input(parallel.lookahead_parallel, prompts)
        texts = [read_prompt() if text == "-" else text for text in prompts]
        llm = build_llm(models, drafter, ranks, tokenizer=tokenizer, max_length=max_length)
        entries = [*(CliPrompt(text, None, text) for text in texts), *file_prompts]
        prepared = [replace(entry, prompt=_prompt(llm, entry, chat, system)) for entry in entries]
        if len(prepared) == 1 and output is None:
            return (
                0
                if print_stream(llm.stream(prepared[0].prompt, sampling)).complete
                else INTERRUPTED
            )
        return answer_all(llm, prepared, sampling, output)


def read_prompts(path: Path) -> list[CliPrompt]:
    """Read the prompts of a file.

    Args:
        path: A .jsonl file has one prompt per line, in the field prompt, text, turns (the first
            turn is used) or messages, optionally with an id. Any other file has one prompt per
            line. Empty lines are skipped.
    Raises:
        ConfigError: The file cannot be read, or a line is no prompt; the message names file and
            line.
    """
    try:
        lines = read_text(path, "surrogateescape").split("\n")
    except OSError as error:
        raise ConfigError(
            f"file: got {str(path)!r}, {error.strerror}; expected a file to read. Check the path."
        ) from error
    read = _record if path.suffix == ".jsonl" else lambda line, where: CliPrompt(line, None, line)
    numbered = (
        (line.rstrip("\r"), f"{path}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    )
    return [read(require_text(where, line), where) for line, where in numbered]


def _record(line: str, where: str) -> CliPrompt:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ConfigError(
            f"{where}: got {line[:60]!r}; expected JSON. Correct the line. [{error}]"
        ) from error
    field = (
        next((name for name in _FIELDS if name in record), None)
        if isinstance(record, dict)
        else None
    )
    value = None if field is None else record[field]
    if field != "messages" and isinstance(value, list) and value and isinstance(value[0], str):
        value = value[0]
    name = str(record["id"]) if isinstance(record, dict) and "id" in record else None
    if isinstance(value, str):
        return CliPrompt(require_text(where, value), name, value)
    if field == "messages":
        messages = checked_messages(value, f"{where}: messages")
        return CliPrompt(text_of(messages[-1]), name, messages)
    raise ConfigError(
        f"{where}: got {line[:60]!r}; expected an object with one of the fields"
        f" {', '.join(_FIELDS)}."
    )


def _prompt(llm: LLM, entry: CliPrompt, chat: bool, system: str | None) -> str | list[int]:
    """Return the input of the model: text or token ids with the chat template applied."""
    if isinstance(entry.prompt, str) and not chat:
        return entry.prompt
    messages = (
        [{"role": "user", "content": entry.prompt}]
        if isinstance(entry.prompt, str)
        else entry.prompt
    )
    return llm.chat_prompt(
        [*([{"role": "system", "content": system}] if system else []), *messages]
    )
