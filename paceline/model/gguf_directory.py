"""Read the tensor list in a GGUF file's header, and copy headers.

This module parses headers itself, because the `gguf` package takes two seconds to read a header
with a vocabulary. The reader in transformers rejects some block formats.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

# Sizes of metadata values in bytes, by type.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_FLOAT_BYTES = 4
_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT = b"general.alignment", 32
_MAX_ALIGNMENT = 4096
# Metadata lists with one value per token or merge; the configuration does not depend on them.
_LONG_LISTS = tuple(b"tokenizer.ggml." + name for name in (b"merges", b"scores", b"token_type"))
# Tensors with factors of rotary frequencies, which belong to the configuration.
ROPE_VECTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_COUNTS = 8  # offset of the numbers of tensors and metadata entries, after magic and version


class ListedTensor(NamedTuple):
    """A tensor in the header of a GGUF file.

    Attributes:
        name: Name of the tensor.
        shape: Shape, with the outermost dimension first.
        type_id: Id of the block format.
        offset: Offset of the tensor's first byte in the file.
        num_bytes: Size of the tensor in the file, in bytes.
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
    with _mapped(path) as content:
        header = _Header(content)
    return [_listed(entry, header.data) for entry in header.tensors], header.data


def header_digest(path: Path) -> bytes:
    """Return the SHA-256 of a GGUF file's header and rotary factors.

    Args:
        path: GGUF file, as for `list_tensors`.
    """
    with _mapped(path) as content, memoryview(content) as view:
        header = _Header(content)
        digest = hashlib.sha256(view[: header.data])
        for name, shape, _, offset in header.tensors:
            if name in ROPE_VECTORS:
                begin = header.data + offset
                digest.update(view[begin : begin + prod(shape) * _FLOAT_BYTES])
        return digest.digest()


def copy_header(path: Path, copy: Path) -> None:
    """Copy a GGUF file's header, without the longest metadata lists and the weights.

    transformers can read the model's configuration from the copy. The configuration does not depend
    on the omitted lists, but transformers would take seconds to read these lists. In the copy, the
    tensors have no elements.

    Args:
        path: GGUF file, as for `list_tensors`.
        copy: File to write.
    """
    with _mapped(path) as content:
        header = _Header(content)
        entries = [entry for entry in header.metadata if entry.key not in _LONG_LISTS]
        with copy.open("wb") as file:
            file.write(content[:_COUNTS] + struct.pack("<QQ", len(header.tensors), len(entries)))
            for entry in entries:
                file.write(content[entry.begin : entry.end])
            for name, shape, type_id, _ in header.tensors:
                encoded = name.encode()
                file.write(struct.pack("<Q", len(encoded)) + encoded)
                file.write(struct.pack(f"<I{len(shape)}Q", len(shape), *[0] * len(shape)))
                file.write(struct.pack("<IQ", type_id, 0))
            file.write(bytes(_MAX_ALIGNMENT))


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        yield content


def _listed(entry: tuple[str, list[int], int, int], begin: int) -> ListedTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # an optional package

    name, shape, type_id, offset = entry
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type_id)]
    return ListedTensor(name, shape, type_id, begin + offset, prod(shape) // block * block_bytes)


class _Entry(NamedTuple):
    """Location of a metadata entry in a GGUF header.

    Attributes:
        key: Name of the entry.
        begin: Offset of the entry in the file, in bytes.
        value: Offset of the entry's value.
        end: Offset of the first byte after the entry.
    """

    key: bytes
    begin: int
    value: int
    end: int


class _Header:
    """Parses the metadata entries and the tensor list in a GGUF header.

    Args:
        content: Memory-mapped contents of the file.
    Attributes:
        metadata: Locations of the metadata entries.
        tensors: Name, shape, format and relative offset of each tensor.
        end: Offset of the first byte after the tensors.
        data: Offset of the data, which is aligned.
    """

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.end = _COUNTS
        num_tensors, num_entries = self._read("<QQ")
        self.metadata = [self._read_entry() for _ in range(num_entries)]
        self.tensors = [self._read_tensor() for _ in range(num_tensors)]
        alignment = _DEFAULT_ALIGNMENT
        for entry in self.metadata:
            if entry.key == _ALIGNMENT_KEY:
                alignment = int.from_bytes(content[entry.value : entry.end], "little")
        self.data = -(-self.end // alignment) * alignment

    def _read_entry(self) -> _Entry:
        begin = self.end
        key = self._read_string()
        (kind,) = self._read("<I")
        value = self.end
        self._skip(kind, 1)
        return _Entry(key, begin, value, self.end)

    def _read_tensor(self) -> tuple[str, list[int], int, int]:
        name = self._read_string().decode()
        (num_dimensions,) = self._read("<I")
        shape = list(reversed(self._read(f"<{num_dimensions}Q")))
        type_id, offset = self._read("<IQ")
        return name, shape, type_id, offset

    def _skip(self, kind: int, count: int) -> None:
        """Advance `end` past `count` metadata values whose type id is `kind`."""
        if kind == _STRING:
            for _ in range(count):
                (size,) = struct.unpack_from("<Q", self._content, self.end)
                self.end += 8 + size
        elif kind == _ARRAY:
            for _ in range(count):
                self._skip(*self._read("<IQ"))
        else:
            self.end += count * _SIZES[kind]

    def _read_string(self) -> bytes:
        (size,) = self._read("<Q")
        self.end += size
        return self._content[self.end - size : self.end]

    def _read(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self._content, self.end)
        self.end += struct.calcsize(form)
        return values
