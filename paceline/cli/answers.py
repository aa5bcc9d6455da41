"""Answer many prompts in a batch, and write the answers as text or JSON Lines."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from paceline.cli.settings import HEADING_CHARACTERS, MAX_BATCH
from paceline.cli.show import INTERRUPTED, out, print_note, summary, write
from paceline.core.sampling_params import SamplingParams
from paceline.util.files import STANDARD_OUTPUT, append, write_atomically

if TYPE_CHECKING:
    from paceline.llm import LLM, Chunk, Completion


@dataclass(frozen=True, slots=True)
class CliPrompt:
    """A prompt to answer.

    Attributes:
        text: Prompt as it is shown to the user.
        name: Id of the prompt in the prompt file, or None.
        prompt: Input for the model: text, messages or token ids.
    """

    text: str
    name: str | None
    prompt: Any


def answered(
    llm: LLM, prompts: Sequence[Any], sampling: SamplingParams
) -> Generator[tuple[int, Completion], None, None]:
    """Answer prompts in batches, and yield each result as soon as it is complete.

    A result is the index of a prompt and its completion. Closing the generator frees all its slots.

    Raises:
        ConfigError, CapacityError: A prompt cannot be used. In this case, no request has started.
    """
    waiting: deque[tuple[int, Generator[Chunk, None, None]]] = deque(
        enumerate([llm.stream(prompt, sampling) for prompt in prompts])
    )
    active: deque[tuple[int, Generator[Chunk, None, None]]] = deque()
    try:
        while waiting or active:
            while waiting and len(active) < MAX_BATCH:
                active.append(waiting.popleft())
            index, stream = active[0]
            # Runs a step for all streams, or returns a chunk left here by another stream's step.
            chunk = next(stream)
            active.popleft()
            if chunk.completion is None:
                active.append((index, stream))
            else:
                yield index, chunk.completion
    finally:
        for _, stream in active:
            stream.close()


def answer_all(
    llm: LLM, prompts: Sequence[CliPrompt], sampling: SamplingParams, output: Path | None
) -> int:
    """Answer prompts, write the answers in order, and return the exit status.

    Ctrl-C ends the run; answers finished by then are still written.

    Args:
        prompts: Prompts to answer.
        output: Write the answers to this file as JSON Lines; "-" means standard output. None
            (default) prints the texts under headings.
    """
    write_answer = _heading_and_text if output is None else _line_to(output)
    finished: dict[int, Completion] = {}
    next_index = 0
    try:
        with (
            closing(answered(llm, [entry.prompt for entry in prompts], sampling)) as answers,
            _bar(len(prompts)) as advance,
        ):
            for index, completion in answers:
                finished[index] = completion
                advance()
                while next_index in finished:
                    write_answer(next_index, prompts[next_index], finished.pop(next_index))
                    next_index += 1
    except KeyboardInterrupt:
        for index in sorted(finished):
            write_answer(index, prompts[index], finished[index])
        print_note(
            f"interrupted; {next_index + len(finished)} of {len(prompts)} prompts were answered"
        )
        return INTERRUPTED
    return 0


def _heading_and_text(index: int, prompt: CliPrompt, completion: Completion) -> None:
    first_line = prompt.text.strip().partition("\n")[0]
    out.rule(Text(first_line[:HEADING_CHARACTERS]), align="left")
    write(f"{completion.text}\n")
    sys.stdout.flush()
    print_note(summary(completion))


def _line_to(output: Path) -> Callable[[int, CliPrompt, Completion], None]:
    if output != STANDARD_OUTPUT:
        write_atomically(output, b"")

    def write_answer(index: int, prompt: CliPrompt, completion: Completion) -> None:
        line = {
            "index": index,
            "id": prompt.name,
            "prompt": prompt.text,
            "text": completion.text,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "seconds": completion.stats.seconds,
            "tokens_per_forward": completion.stats.tokens_per_forward,
            "batch_invariant": completion.stats.batch_invariant,
        }
        append(output, f"{json.dumps(line)}\n".encode())

    return write_answer


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from paceline.report.progress import progress_bar

    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
