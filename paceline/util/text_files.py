"""Text that users give, in UTF-8, with or without the byte order mark that editors and shells of
Windows write.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TextIO

from paceline.errors import ConfigError

MARK = "\ufeff"
_OTHERS = {  # the longer ones first: UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_LONGEST = 4  # bytes


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Return the text of a file, without a byte order mark; ends of lines as they are.

    Args:
        errors: as for `bytes.decode`.
    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        ConfigError: its byte order mark is that of UTF-16 or UTF-32.
    """
    return decode_text(Path(path).read_bytes(), str(path), errors)


def decode_text(content: bytes, name: str, errors: str = "strict") -> str:
    """Return the text that bytes say, without a byte order mark.

    Args:
        name: of what they come from, for errors.
        errors: as for `bytes.decode`.
    Raises:
        UnicodeDecodeError: they are not UTF-8.
        ConfigError: their byte order mark is that of UTF-16 or UTF-32.
    """
    _refuse_others(content[:_LONGEST], name)
    return content.decode("utf-8", errors).removeprefix(MARK)


def open_text(path: str | Path, errors: str = "strict") -> TextIO:
    """Open a file for reading line by line; arguments and errors as `read_text`."""
    with open(path, "rb") as file:
        _refuse_others(file.read(_LONGEST), str(path))
    return open(path, encoding="utf-8-sig", errors=errors)


def _refuse_others(beginning: bytes, name: str) -> None:
    for mark, encoding in _OTHERS.items():
        if beginning.startswith(mark):
            raise ConfigError(
                f"{name}: got text in {encoding}, by its byte order mark; expected UTF-8. Save it"
                " as UTF-8."
            )
