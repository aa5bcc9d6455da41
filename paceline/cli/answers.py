"""Answers to many prompts, each as soon as it is there, and where they go: under headings, or as
JSON lines.
"""

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

from paceline.cli.show import INTERRUPTED, out, print_note, summary, write
from paceline.core.request import SamplingParams
from paceline.util.files import STANDARD_OUTPUT, append, write_atomically

if TYPE_CHECKING:
    from paceline.llm import LLM, Chunk, Completion

_TOGETHER = 8  # as `LLM` has it
_HEADING = 60  # characters of a prompt


@dataclass(frozen=True, slots=True)
class CliPrompt:
    """A prompt: its text, as it is shown, the id it has in a file, and what the model is given."""

    text: str
    name: str | None
    prompt: Any


def answered(
    llm: LLM, prompts: Sequence[Any], sampling: SamplingParams
) -> Generator[tuple[int, Completion], None, None]:
    """Yield the place and the answer of each prompt as it ends; they share batches. Closing it
    frees all that it holds.

    Raises:
        ConfigError, CapacityError: a prompt that cannot be used. Nothing has been started then.
    """
    waiting: deque[tuple[int, Generator[Chunk, None, None]]] = deque(
        enumerate([llm.stream(one, sampling) for one in prompts])
    )
    going: deque[tuple[int, Generator[Chunk, None, None]]] = deque()
    try:
        while waiting or going:
            while waiting and len(going) < _TOGETHER:
                going.append(waiting.popleft())
            place, stream = going[0]
            chunk = next(
                stream
            )  # a step for all of them, or what one that was made for another has left for this one
            going.popleft()
            if chunk.completion is None:
                going.append((place, stream))
            else:
                yield place, chunk.completion
    finally:
        for _, stream in going:
            stream.close()


def answer_all(
    llm: LLM, asked: Sequence[CliPrompt], sampling: SamplingParams, output: Path | None
) -> int:
    """Answer prompts and give the answers out in their order; return the exit status.

    Ctrl-C ends it; what is finished by then is given out, also behind a prompt whose answer is not.

    Args:
        output: file for JSON lines, "-" for standard output; None: texts under headings, on
            standard output.
    """
    give = _heading_and_text if output is None else _line_to(output)
    finished: dict[int, Completion] = {}
    due = 0
    try:
        with (
            closing(answered(llm, [one.prompt for one in asked], sampling)) as answers,
            _bar(len(asked)) as advance,
        ):
            for place, completion in answers:
                finished[place] = completion
                advance()
                while due in finished:
                    give(due, asked[due], finished.pop(due))
                    due += 1
    except KeyboardInterrupt:
        for place in sorted(finished):
            give(place, asked[place], finished[place])
        print_note(f"interrupted; {due + len(finished)} of {len(asked)} prompts were answered")
        return INTERRUPTED
    return 0


def _heading_and_text(place: int, asked: CliPrompt, completion: Completion) -> None:
    out.rule(
        Text(asked.text.strip().splitlines()[0][:_HEADING] if asked.text.strip() else ""),
        align="left",
    )
    write(f"{completion.text}\n")
    sys.stdout.flush()
    print_note(summary(completion))


def _line_to(output: Path) -> Callable[[int, CliPrompt, Completion], None]:
    if output != STANDARD_OUTPUT:
        write_atomically(output, b"")

    def give(place: int, asked: CliPrompt, completion: Completion) -> None:
        line = {
            "index": place,
            "id": asked.name,
            "prompt": asked.text,
            "text": completion.text,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "seconds": completion.stats.seconds,
            "tokens_per_forward": completion.stats.tokens_per_forward,
            "batch_invariant": completion.stats.batch_invariant,
        }
        append(output, f"{json.dumps(line)}\n".encode())

    return give


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal's standard error; yield the function that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from paceline.report.progress import progress_bar

    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
