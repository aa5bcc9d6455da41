"""Parse the reasoning that models write before their answers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.parsing.events import EventWriter
from paceline.parsing.parser import ReadAnswer, Schemas
from paceline.parsing.text_source import TextSource, Waiting


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts that enclose a model's reasoning.

    Attributes:
        open: Text before the reasoning.
        close: Text after the reasoning.
    """

    open: str
    close: str

    def is_open(self, prompt: str) -> bool:
        """Return whether a prompt ends inside the reasoning."""
        start = prompt.rfind(self.open)
        return start >= 0 and not prompt[start + len(self.open) :].strip()


def read_text(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the whole answer to `writer` as text."""
    yield from source.copy_until([], writer.content)


def after_reasoning(read: ReadAnswer, markers: ReasoningMarkers, is_open: bool) -> ReadAnswer:
    """Return a generator function that parses the reasoning and then the answer.

    Args:
        read: Generator function that parses the answer after the reasoning.
        markers: Texts that enclose the reasoning.
        is_open: Whether the prompt has already opened the reasoning.
    """

    def read_all(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
        spaces, reasons = "", is_open
        if not is_open:
            spaces = yield from source.skip_spaces()
            reasons = yield from source.take(markers.open)
        if reasons:
            writer.begin_reasoning()
            yield from source.take(markers.open)  # some models repeat what the prompt has opened
            yield from source.copy_until([markers.close], writer.reasoning)
            writer.end_reasoning()
        else:
            writer.content(spaces)
        yield from read(source, writer, schemas)

    return read_all
