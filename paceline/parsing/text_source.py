"""Pass the text of an answer to parsers as it arrives.

A parser is a generator that reads a `TextSource`. Whenever the parser needs text that has not
arrived yet, it yields. The parser's result therefore does not depend on how the text is split into
chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from paceline.parsing.settings import WHITESPACE

Waiting = Generator[None, None, None]


class TextSource:
    """Buffers the text of an answer that arrives in parts, for a parser to read.

    Attributes:
        ended: Whether no more text will arrive.
    """

    def __init__(self) -> None:
        self._text = ""
        self._start = 0
        self.ended = False

    def add(self, text: str) -> None:
        """Append newly arrived text to the unread text."""
        self._text = self._text[self._start :] + text
        self._start = 0

    def starts_with(self, literal: str) -> Generator[None, None, bool]:
        """Return whether the unread text starts with a literal."""
        while True:
            ready = self._text[self._start : self._start + len(literal)]
            if ready == literal:
                return True
            if self.ended or not literal.startswith(ready):
                return False
            yield

    def take(self, literal: str) -> Generator[None, None, bool]:
        """Skip a literal at the start of the unread text; return False if it is absent."""
        matches = yield from self.starts_with(literal)
        if matches:
            self._start += len(literal)
        return matches

    def skip_spaces(self) -> Generator[None, None, str]:
        """Read and return all white space at the start of the unread text."""
        return (yield from self.take_while(WHITESPACE.__contains__))

    def take_while(self, accepts: Callable[[str], bool]) -> Generator[None, None, str]:
        """Read and return all characters up to the first that `accepts` rejects."""
        taken = ""
        while (char := (yield from self.peek())) and accepts(char):
            taken += char
            self._start += 1
        return taken

    def peek(self) -> Generator[None, None, str]:
        """Return the next character without consuming it; "" if the answer has ended."""
        while self._start >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._start]

    def next(self) -> Generator[None, None, str]:
        """Consume and return the next character; "" if the answer has ended."""
        char = yield from self.peek()
        self._start += len(char)
        return char

    def copy_until(
        self, markers: Sequence[str], write: Callable[[str], None]
    ) -> Generator[None, None, str]:
        """Pass the text before the first marker to `write`, and read past the marker.

        Args:
            markers: Literals that end the text. If several markers match at the same position, the
                longest marker is used.
            write: Function that receives the fragments of the text.
        Returns:
            The marker that was found; "" if the answer ends without a marker.
        """
        ordered = sorted(markers, key=len, reverse=True)
        while True:
            text = self._text[self._start :]
            marker_offsets = [(at, marker) for marker in ordered if (at := text.find(marker)) >= 0]
            first = min(marker_offsets, key=lambda pair: pair[0], default=None)
            # An incomplete marker at the end of the text may turn out to start earlier than the
            # first complete marker, or to be a longer match at the same position.
            open_at = len(text) if self.ended else _first_open(text, ordered)
            if first is not None and (self.ended or first[0] < open_at):
                at, marker = first
                write(text[:at])
                self._start += at + len(marker)
                return marker
            write(text[:open_at])
            self._start += open_at
            if self.ended:
                return ""
            yield

    def read_until(self, markers: Sequence[str]) -> Generator[None, None, tuple[str, str]]:
        """Read up to the first marker; return the text and the marker ("" if none)."""
        parts: list[str] = []
        marker = yield from self.copy_until(markers, parts.append)
        return "".join(parts), marker


def _first_open(text: str, markers: Sequence[str]) -> int:
    """Return the first index at which an incomplete marker may start.

    If there is no such index, the result is the length of the text.
    """
    longest = max(map(len, markers), default=1)
    for at in range(max(0, len(text) - longest + 1), len(text)):
        rest = text[at:]
        if any(len(marker) > len(rest) and marker.startswith(rest) for marker in markers):
            return at
    return len(text)
