"""The command `paceline generate`."""

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
from paceline.util.conversations import checked_messages, text_of
from paceline.util.files import parse_json, require_writable
from paceline.util.options import ModelOptions
from paceline.util.text_files import read_text
from paceline.util.tokens import require_text

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
    """Answer prompts; a single one is streamed, several run as a batch.

    Args:
        prompts: one or more prompts; '-' reads one from standard input. One that looks like an
            option comes after '--'.
        drafter: name:key=value,key=value; see `paceline drafters`.
        chat: wrap each prompt in the chat template.
        system: system message; implies --chat.
        file: more prompts: .jsonl with a prompt, text, turns or messages in each line (and an id),
            or one in each line of text.
        output: write the answers here as JSON lines, one for each prompt; '-' is standard output.
        tokenizer: directory or hub id; default: the one beside the model.
        max_length: most tokens of prompt and answer; default: the model's context.
    """
    if output is not None:
        require_writable(output)
    more = [] if file is None else read_prompts(file)
    if not prompts and not more:
        raise ConfigError(
            "generate: got no prompt; expected at least one. Give it, or a --file of them."
        )
    chat = chat or system is not None
    with joined_ranks(parallel, models.device) as ranks:
        refuse_standard_input(parallel.lookahead_parallel, prompts)
        texts = [read_prompt() if text == "-" else text for text in prompts]
        llm = build_llm(models, drafter, ranks, tokenizer=tokenizer, max_length=max_length)
        asked = [*(CliPrompt(text, None, text) for text in texts), *more]
        ready = [replace(one, prompt=_prompt(llm, one, chat, system)) for one in asked]
        if len(ready) == 1 and output is None:
            return (
                0 if print_stream(llm.stream(ready[0].prompt, sampling)).complete else INTERRUPTED
            )
        return answer_all(llm, ready, sampling, output)


def read_prompts(path: Path) -> list[CliPrompt]:
    """Return the prompts of a file.

    Args:
        path: .jsonl: one in each line, in the field prompt, text, turns (the first one is asked) or
            messages, perhaps with an id; any other file: one in each line. Empty lines are left
            out.
    Raises:
        ConfigError: a file that cannot be read, or a line that is no prompt; file and line are
            named.
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
    """Return the prompt of a line of JSON."""
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
    found = None if field is None else record[field]
    if field != "messages" and isinstance(found, list) and found and isinstance(found[0], str):
        found = found[0]
    name = str(record["id"]) if isinstance(record, dict) and "id" in record else None
    if isinstance(found, str):
        return CliPrompt(require_text(where, found), name, found)
    if field == "messages":
        messages = checked_messages(found, f"{where}: messages")
        return CliPrompt(text_of(messages[-1]), name, messages)
    raise ConfigError(
        f"{where}: got {line[:60]!r}; expected an object with {', '.join(_FIELDS)}. Add one of"
        " them."
    )


def _prompt(llm: LLM, asked: CliPrompt, chat: bool, system: str | None) -> str | list[int]:
    """Return what the model is given."""
    if isinstance(asked.prompt, str) and not chat:
        return asked.prompt
    messages = (
        [{"role": "user", "content": asked.prompt}]
        if isinstance(asked.prompt, str)
        else asked.prompt
    )
    return llm.chat_prompt(
        [*([{"role": "system", "content": system}] if system else []), *messages]
    )
