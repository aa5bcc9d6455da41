"""Implement the command `paceline generate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.answers import CliPrompt, answer_all
from paceline.cli.loading import build_llm
from paceline.cli.options import (
    WITHOUT_MODEL,
    EngineOptions,
    ParallelOptions,
    TargetModel,
    flattened,
)
from paceline.cli.parallel import joined_ranks, refuse_standard_input
from paceline.cli.prompt_input import read_prompt
from paceline.cli.show import INTERRUPTED, print_stream
from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from paceline.text.prompt_records import read_prompt_file
from paceline.util.files import require_writable
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.llm import LLM


@flattened("Input and output")
@dataclass(frozen=True, slots=True)
class PromptInput:
    """Source of the prompts and destination of the answers.

    Attributes:
        chat: Apply the model's chat template to each prompt.
        system: System message; implies --chat. Default: none.
        file: Read additional prompts from this file. Each line of a .jsonl file is a JSON object
            with a `prompt`, `text`, `turns` or `messages` field, and optionally an `id` field. Any
            other file has one prompt per line. Default: none.
        output: Write the answers to this file as JSON lines, one per prompt; '-' writes them to
            standard output. Default: print only the text of the answers.
    """

    chat: bool = False
    system: str | None = None
    file: Path | None = None
    output: Path | None = None

    @property
    def uses_template(self) -> bool:
        """Return whether the chat template is applied to prompts that are plain text."""
        return self.chat or self.system is not None


def generate(
    model: TargetModel,
    /,
    *prompts: Annotated[str, Parameter(name="PROMPT")],
    source: PromptInput = PromptInput(),
    engine: EngineOptions = EngineOptions(),
    models: Annotated[ModelOptions, WITHOUT_MODEL] = ModelOptions(),
    sampling: SamplingParams = SamplingParams(),
    parallel: ParallelOptions = ParallelOptions(),
) -> int:
    """Answer one prompt as a stream, or several as a batch.

    Example: paceline generate demo "Count to three." --chat -n 32

    Args:
        prompts: Prompt to answer; repeatable. '-' reads a prompt from standard input. Write '--'
            before a prompt that looks like an option.
    """
    if source.output is not None:
        require_writable(source.output)
    file_prompts = [] if source.file is None else read_prompts(source.file)
    if not prompts and not file_prompts:
        if source.file is not None:
            raise ConfigError(f"{source.file}: there are no prompts. Add one per line.")
        raise ConfigError(
            "generate: no prompt was given. Add one after the model, as in `paceline generate MODEL"
            " PROMPT`, or a file of prompts with --file."
        )
    with joined_ranks(parallel, models.device) as ranks:
        refuse_standard_input(parallel.lookahead_parallel, prompts)
        texts = [read_prompt() if text == "-" else text for text in prompts]
        llm = build_llm(
            replace(models, model=model),
            engine.drafter,
            ranks,
            tokenizer=engine.tokenizer,
            max_length=engine.max_length,
        )
        entries = [*(CliPrompt(text, None, text) for text in texts), *file_prompts]
        prepared = [replace(entry, prompt=_prompt(llm, entry, source)) for entry in entries]
        if len(prepared) == 1 and source.output is None:
            return (
                0
                if print_stream(llm.stream(prepared[0].prompt, sampling)).complete
                else INTERRUPTED
            )
        return answer_all(llm, prepared, sampling, source.output)


def read_prompts(path: Path) -> list[CliPrompt]:
    """Read the prompts from a file.

    Args:
        path: File to read; see `read_prompt_file`.
    Raises:
        ConfigError: The file cannot be read, or a line is not a prompt; the message names the file
            and line.
    """
    return [
        CliPrompt(record.text, record.id, record.messages or record.text)
        for _, record in read_prompt_file(path)
    ]


def _prompt(llm: LLM, entry: CliPrompt, source: PromptInput) -> str | list[int]:
    """Return the model's input: text or token ids, with the chat template applied."""
    if isinstance(entry.prompt, str) and not source.uses_template:
        return entry.prompt
    messages = (
        [{"role": "user", "content": entry.prompt}]
        if isinstance(entry.prompt, str)
        else entry.prompt
    )
    opening = [{"role": "system", "content": source.system}] if source.system else []
    return llm.chat_prompt([*opening, *messages])
