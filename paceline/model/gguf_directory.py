"""Read the tensor list at the end of a GGUF file's header.

The `gguf` package takes two seconds to read a header with a vocabulary, and the reader in
transformers rejects some block formats.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

# Sizes of metadata values in bytes, by type.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT = b"general.alignment", 32
_COUNTS = 8  # offset of the numbers of tensors and metadata entries, after magic and version


class ListedTensor(NamedTuple):
    """A tensor in the header of a GGUF file.

    Attributes:
        name: Name of the tensor.
        shape: Shape, with the outermost dimension first.
        type_id: Id of the block format.
        offset: Offset of the first byte in the file.
        num_bytes: Number of bytes in the file.
    """

    name: str
    shape: list[int]
    type_id: int
    offset: int
    num_bytes: int


def list_tensors(path: Path) -> tuple[list[ListedTensor], int]:
    """Return the tensors in a GGUF file, and the offset of the data after the header.

    Args:
        path: A little-endian file of version 2 or 3, as checked by `gguf.read_metadata`.
    Raises:
        ValueError: The format of a tensor is unknown.
        struct.error: The header is damaged.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        header = _Header(content)
        num_tensors, alignment = header.skip_metadata()
        entries = [header.read_entry() for _ in range(num_tensors)]
        begin = -(-header.position // alignment) * alignment
    return [_listed(entry, begin) for entry in entries], begin


def _listed(entry: tuple[str, list[int], int, int], begin: int) -> ListedTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # an optional package

    name, shape, type_id, offset = entry
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type_id)]
    numbers = 1
    for size in shape:
        numbers *= size
    return ListedTensor(name, shape, type_id, begin + offset, numbers // block * block_bytes)


class _Header:
    """Reads a header from its first metadata entry to its last tensor.

    Args:
        content: The file.
    Attributes:
        position: Offset of the next byte to read.
    """

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.position = _COUNTS

    def skip_metadata(self) -> tuple[int, int]:
        """Return the number of tensors, and the alignment of the data."""
        num_tensors, num_entries = self._read("<QQ")
        alignment = _DEFAULT_ALIGNMENT
        for _ in range(num_entries):
            key = self._read_string()
            (kind,) = self._read("<I")
            begin = self.position
            self._skip(kind, 1)
            if key == _ALIGNMENT_KEY:
                alignment = int.from_bytes(self._content[begin : self.position], "little")
        return num_tensors, alignment

    def read_entry(self) -> tuple[str, list[int], int, int]:
        """Return the name, shape, format and relative offset of the next tensor."""
        name = self._read_string().decode()
        (num_dimensions,) = self._read("<I")
        shape = list(reversed(self._read(f"<{num_dimensions}Q")))
        type_id, offset = self._read("<IQ")
        return name, shape, type_id, offset

    def _skip(self, kind: int, count: int) -> None:
        """Skip metadata values of one type."""
        if kind == _STRING:
            for _ in range(count):
                (size,) = struct.unpack_from("<Q", self._content, self.position)
                self.position += 8 + size
        elif kind == _ARRAY:
            for _ in range(count):
                self._skip(*self._read("<IQ"))
        else:
            self.position += count * _SIZES[kind]

    def _read_string(self) -> bytes:
        (size,) = self._read("<Q")
        self.position += size
        return self._content[self.position - size : self.position]

    def _read(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self._content, self.position)
        self.position += struct.calcsize(form)
        return values
