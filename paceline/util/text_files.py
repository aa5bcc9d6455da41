"""Read the user's UTF-8 text files, with or without a byte order mark."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TextIO

from paceline.errors import ConfigError

MARK = "\ufeff"
_OTHER_MARKS = {  # longest first, because UTF-32's mark starts with UTF-16's mark
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_MAX_MARK = 4  # length of the longest mark, in bytes


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a UTF-8 file without its byte order mark, preserving line endings.

    Args:
        path: File to read.
        errors: Name of the error handler for invalid bytes, as in `bytes.decode`.
    Raises:
        OSError, UnicodeDecodeError: The file cannot be read.
        ConfigError: The file has a UTF-16 or UTF-32 byte order mark.
    """
    return decode_text(Path(path).read_bytes(), str(path), errors)


def decode_text(content: bytes, name: str, errors: str = "strict") -> str:
    """Decode UTF-8 text, removing any byte order mark.

    Args:
        content: Bytes to decode.
        name: Name of the bytes' source in error messages.
        errors: Name of the error handler for invalid bytes, as in `bytes.decode`.
    Raises:
        UnicodeDecodeError: The bytes are not UTF-8.
        ConfigError: The bytes have a UTF-16 or UTF-32 byte order mark.
    """
    _refuse_other_encodings(content[:_MAX_MARK], name)
    return content.decode("utf-8", errors).removeprefix(MARK)


def open_text(path: str | Path, errors: str = "strict") -> TextIO:
    """Open a file for reading line by line; see `read_text` for arguments and errors."""
    with open(path, "rb") as file:
        _refuse_other_encodings(file.read(_MAX_MARK), str(path))
    return open(path, encoding="utf-8-sig", errors=errors)


def _refuse_other_encodings(beginning: bytes, name: str) -> None:
    for mark, encoding in _OTHER_MARKS.items():
        if beginning.startswith(mark):
            raise ConfigError(
                f"{name}: got text in {encoding}, by its byte order mark; expected UTF-8. Save it"
                " as UTF-8."
            )
