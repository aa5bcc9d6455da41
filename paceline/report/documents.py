"""Write results atomically as JSON documents, and read them back as dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.v import format_exception

from paceline.errors import ConfigError, PacelineError
from paceline.util.files import parse_json, write_atomically
from paceline.util.text_files import read_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DocumentKind(Generic[T]):
    """A type of JSON document, such as the results of a benchmark.

    Attributes:
        name: Name of the type, which every document stores in its field `kind`.
        schema: Version of the document's fields, which every document stores in its field `schema`.
        content: Dataclass whose fields the document contains.
    """

    name: str
    schema: int
    content: type[T]


def write_document(path: str | Path, kind: DocumentKind[T], content: T, **derived: Any) -> None:
    """Write a result as a JSON document, together with figures computed from it.

    Args:
        path: File to write.
        kind: Type of the document.
        content: Result to write.
        derived: Figures computed from the result, for other programs. `read_document` ignores them.
    Raises:
        ConfigError: The file cannot be written.
    """
    values = {
        "schema": kind.schema,
        "kind": kind.name,
        **derived,
        **_CONVERTER.unstructure(content),
    }
    text = json.dumps(_CONVERTER.unstructure(values), indent=1, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def read_document(path: str | Path, *kinds: DocumentKind[T]) -> T:
    """Read a document of one of the given types, and return its content.

    Raises:
        ConfigError: The file does not exist, or contains a document of a different type or schema.
            Also raised if a field is missing or has the wrong type.
    """
    document = _load(path)
    header = document.get("kind"), document.get("schema")
    kind = next((kind for kind in kinds if (kind.name, kind.schema) == header), None)
    if kind is None:
        expected = " or ".join(f"kind {kind.name!r}, schema {kind.schema}" for kind in kinds)
        raise ConfigError(
            f"{str(path)!r}: got kind {header[0]!r}, schema {header[1]!r}; expected {expected}."
            " Measure it again."
        )
    try:
        return structured(document, kind.content)
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is damaged: {error}. Measure it again.") from error


def structured(values: Mapping[str, Any], kind: type[T]) -> T:
    """Build a dataclass from JSON values, checking the type of every field.

    Raises:
        ValueError: Fields are missing or have the wrong type. The message lists up to three.
    """
    try:
        return _CONVERTER.structure(values, kind)
    except Exception as error:  # cattrs wraps whatever a field raises
        raise ValueError(
            "; ".join(cattrs.transform_error(error, path="", format_exception=_describe)[:3])
        ) from error


def kind_of(path: str | Path) -> str:
    """Read a document, and return the name of its type, as in `DocumentKind.name`.

    Raises:
        ConfigError: The file cannot be read.
    """
    return str(_load(path).get("kind"))


def _load(path: str | Path) -> dict[str, Any]:
    try:
        document = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the result {str(path)!r} cannot be read: {error}. Check its name."
        ) from error
    return document if isinstance(document, dict) else {}


class _WrongTypeError(TypeError):
    """Raised if a JSON value does not have the type of its dataclass field."""


def _exactly(value: Any, expected: type) -> Any:
    """Return `value` unchanged, or raise `_WrongTypeError` if its type is wrong."""
    allowed = (int, float) if expected is float else expected
    if not isinstance(value, allowed) or (isinstance(value, bool) and expected is not bool):
        raise _WrongTypeError(f"got {value!r}; expected {expected.__name__}")
    return value


def _describe(error: BaseException, expected: type | None) -> str:
    if isinstance(error, _WrongTypeError | PacelineError):
        return str(error)
    return (
        "got nothing; expected this field"
        if isinstance(error, KeyError)
        else format_exception(error, expected)
    )


def _overrides(kind: Any) -> dict[str, Any]:
    """Return the cattrs overrides that exclude per-request fields from documents."""
    return {
        entry.name: override(omit=True)
        for entry in fields(kind)
        if entry.metadata.get("per_request")
    }


def _has_overrides(kind: Any) -> bool:
    return is_dataclass(kind) and bool(_overrides(kind))


_CONVERTER = cattrs.Converter()
for _register, _make in (
    (_CONVERTER.register_structure_hook_factory, make_dict_structure_fn),
    (_CONVERTER.register_unstructure_hook_factory, make_dict_unstructure_fn),
):
    _register(_has_overrides, lambda kind, make=_make: make(kind, _CONVERTER, **_overrides(kind)))
for _plain in (bool, int, float, str):
    _CONVERTER.register_structure_hook(_plain, _exactly)
