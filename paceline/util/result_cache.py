"""Store results, such as measurements and self-tests, in the user's cache.

The key of a result contains all facts on which the result depends. If the cache cannot be written,
results stay in memory until the process ends.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from paceline.util import cache
from paceline.util.files import parse_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
M = TypeVar("M", bound="_Measurement")
T = TypeVar("T")


class _Measurement(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def doubtful(self) -> bool:
        """Return whether the measurement should be repeated now."""


@dataclass(frozen=True, slots=True)
class ResultKey:
    """Key of a result in the cache.

    Attributes:
        kind: Kind of the result, with its format version, such as "rows-v3".
        facts: All facts on which the result depends. Each combination of facts has its own folder.
        name: Name of the result in the list that `paceline cache` prints.
        file: Name of the file within the folder.
    """

    kind: str
    facts: str
    name: str
    file: str

    @property
    def folder(self) -> Path:
        """Folder that stores the result; it may not exist yet."""
        return cache.root() / self.kind / hashlib.sha256(self.facts.encode()).hexdigest()


# Results that could not be written to disk, by $PACELINE_CACHE and key.
_unwritten: dict[tuple[str | None, ResultKey], Any] = {}


def load_or_compute(
    key: ResultKey, compute: Callable[[], R], read: Callable[[dict[str, Any]], R]
) -> R:
    """Return a result from the cache, or compute and store it.

    Args:
        key: Key of the result.
        compute: Function that returns the result: a dataclass with JSON values.
        read: Function that rebuilds the dataclass from a dictionary of its attributes.
    """
    return load_or_compute_bytes(key, compute, _to_bytes, lambda content: read(parse_json(content)))


def load_or_measure(
    key: ResultKey, measure: Callable[[], M], read: Callable[[dict[str, Any]], M]
) -> M:
    """Return a measurement from the cache; measure if it is missing or doubtful.

    A stored measurement is doubtful if other programs disturbed it and the machine is quieter now.

    Args:
        key: Key of the measurement.
        measure: Function that performs the measurement, and returns a dataclass with JSON values.
        read: Function that rebuilds the dataclass from a dictionary of its attributes.
    """
    measured = load_or_compute(key, measure, read)
    if not measured.doubtful:
        return measured
    repeated = measure()
    replace(key, repeated)
    return repeated


def load_or_compute_bytes(
    key: ResultKey,
    compute: Callable[[], T],
    write: Callable[[T], bytes],
    read: Callable[[bytes], T],
) -> T:
    """Return a result in a binary format from the cache, or compute and store it.

    Args:
        key: Key of the result.
        compute: Function that returns the result.
        write: Function that converts the result to the content of a file.
        read: Inverse of `write`. It raises a ValueError, LookupError or TypeError if the file is
            damaged.
    """
    computed: list[T] = []

    def make(folder: Path) -> dict[str, Any]:
        computed.append(compute())
        (folder / key.file).write_bytes(write(computed[0]))
        return {}

    memory_key = os.environ.get(cache.VARIABLE), key
    if memory_key in _unwritten:
        return cast(T, _unwritten[memory_key])
    try:
        folder = cache.obtain_folder(key.folder, key.name, make, lambda: None)
        return read((folder / key.file).read_bytes())
    except (OSError, cache.CacheError) as error:
        cache.note_unwritable(error)
        _unwritten[memory_key] = computed[0] if computed else compute()
        return cast(T, _unwritten[memory_key])
    except (ValueError, LookupError, TypeError):  # the file is damaged
        return computed[0] if computed else compute()


def load(key: ResultKey, read: Callable[[dict[str, Any]], R]) -> R | None:
    """Return a result that `load_or_compute` or `replace` has stored, or None."""
    return load_bytes(key, lambda content: read(parse_json(content)))


def load_bytes(key: ResultKey, read: Callable[[bytes], T]) -> T | None:
    """Return a result that `load_or_compute_bytes` has stored, or None."""
    memory_key = os.environ.get(cache.VARIABLE), key
    if memory_key in _unwritten:
        return cast(T, _unwritten[memory_key])
    try:
        return read((key.folder / key.file).read_bytes())
    except (OSError, cache.CacheError, ValueError, LookupError, TypeError):
        return None


def replace(key: ResultKey, result: DataclassInstance) -> None:
    """Store a result, overwriting any earlier result."""

    def make(folder: Path) -> dict[str, Any]:
        (folder / key.file).write_bytes(_to_bytes(result))
        return {}

    try:
        cache.replace_folder(key.folder, key.name, make)
    except cache.CacheError as error:
        cache.note_unwritable(error)
        _unwritten[os.environ.get(cache.VARIABLE), key] = result


def _to_bytes(result: DataclassInstance) -> bytes:
    return (json.dumps(asdict(result), indent=1) + "\n").encode()
