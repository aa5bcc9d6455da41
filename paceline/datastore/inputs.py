"""Read documents from text, JSON Lines, array and Parquet files, or data sets.

Parquet files and data sets require the `datasets` extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.gathering import Document
from paceline.datastore.records import parse_record, record_parts
from paceline.datastore.store_settings import TEXT_CHARACTERS, TOKENIZED_TEXTS
from paceline.errors import ConfigError, install_command
from paceline.recorded_answers.reading import read_answers, read_settings
from paceline.util.text_files import open_text
from paceline.util.unicode import require_text

DATASET = "datasets:"  # prefix of a data set's name
_SUFFIXES = (".jsonl", ".txt", ".npy", ".parquet")
_Bad = Callable[[ConfigError], None]


class _JsonLine(str):
    """A string that is a line of JSON and has not been parsed yet."""

    __slots__ = ()


def documents(
    inputs: Iterable[str],
    tokenizer: Any,
    *,
    answers_only: bool = False,
    left_out: Callable[[ConfigError], None] | None = None,
) -> Iterator[Document]:
    """Yield the token ids of all documents, file by file.

    Each record in JSON, Parquet or a data set is one document. A record must contain the field
    `text`, the field `messages`, or the fields `prompt` and `output` (as text or ids). Files that
    `paceline record` wrote contain such records. Plain text is cut into documents of about 1 MiB at
    line ends. An array of ids is one document; a two-dimensional array has one document per row.

    Args:
        inputs: File names (.jsonl, .txt, .npy, .parquet) or 'datasets:NAME'. Append '@SPLIT' to a
            data set's name to select a split other than 'train'.
        tokenizer: Transformers tokenizer. Plain text is encoded without special tokens.
            Conversations are formatted with the tokenizer's chat template, if there is one.
        answers_only: Whether to use only the assistant's messages or outputs. Default False.
        left_out: Function called with the error for each invalid record or line. The record or
            line is then skipped. By default, the error is raised.
    Raises:
        ConfigError: A file is missing or of an unknown type, or a record is invalid. Also raised if
            recorded answers are damaged, incomplete or from a different tokenizer. The error names
            the file and the line.
    """
    bad = _raised if left_out is None else left_out
    names = list(inputs)
    for name in names:
        if not name.startswith(DATASET):
            _check_file(Path(name))
            check_recorded(name, tokenizer)
    for name in names:
        if name.endswith(".npy") and not name.startswith(DATASET):
            yield from _arrays(Path(name))
        else:
            yield from _tokenized(_texts(name, tokenizer, answers_only, bad), tokenizer)


def _check_file(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise ConfigError(
            f"input {str(path)!r}: got the file type {path.suffix!r}; expected"
            f" {', '.join(_SUFFIXES)} or {DATASET}NAME. Convert it first."
        )
    if not path.is_file():
        raise ConfigError(f"there is no input file {str(path)!r}. Check the path.")


def check_recorded(path: str | Path, tokenizer: Any) -> bool:
    """Return whether `paceline record` wrote a file, and check its tokenizer.

    Args:
        path: File to check.
        tokenizer: transformers tokenizer or its fingerprint. None matches every file.
    Raises:
        ConfigError: The file was made with a different tokenizer; the error shows both
            fingerprints.
    """
    settings = read_settings(path)
    if settings is None:
        return False
    recorded, given = settings["tokenizer"], fingerprint_of(tokenizer)
    if None not in (recorded, given) and recorded != given:
        raise ConfigError(
            f"answers {str(path)!r}: got the tokenizer {given}; expected {recorded}, which"
            " encoded the answers. Use that tokenizer, or answers from a model with the given one."
        )
    return True


def _raised(error: ConfigError) -> None:
    raise error


def _texts(
    name: str, tokenizer: Any, answers_only: bool, bad: _Bad
) -> Iterator[list[str | list[int]]]:
    """Yield each document as a list of texts or token ids to concatenate."""
    if name.endswith(".txt"):
        for text in _text_documents(Path(name), bad):
            yield [text]
        return
    for source, record in _records(name):
        try:
            parts = record_parts(
                source,
                parse_record(source, record) if isinstance(record, _JsonLine) else record,
                tokenizer,
                answers_only,
            )
            for part in parts:
                if isinstance(part, str):
                    require_text(source, part)
        except ConfigError as error:
            bad(error)
            continue
        yield parts


def _tokenized(texts: Iterator[list[str | list[int]]], tokenizer: Any) -> Iterator[list[int]]:
    """Yield the ids of each document, tokenising many texts in one call."""
    while batch := list(islice(texts, TOKENIZED_TEXTS)):
        strings = [part for parts in batch for part in parts if isinstance(part, str)]
        ids = iter(tokenizer(strings, add_special_tokens=False)["input_ids"] if strings else ())
        for parts in batch:
            yield [
                token for part in parts for token in (next(ids) if isinstance(part, str) else part)
            ]


def _records(name: str) -> Iterator[tuple[str, Any]]:
    """Yield a description of each record's source, and the record or its JSON line."""
    if not name.startswith(DATASET) and read_settings(name) is not None:
        for answer in read_answers(name):
            yield (
                f"{name}, answer {answer.id}",
                {"prompt": answer.prompt_ids, "output": answer.output_ids},
            )
    elif name.startswith(DATASET) or name.endswith(".parquet"):
        rows = _dataset(name) if name.startswith(DATASET) else _parquet(name)
        yield from ((f"{name}, record {number}", row) for number, row in enumerate(rows, 1))
    else:
        with _opened(Path(name)) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{name}:{number}", _JsonLine(line)


def _dataset(name: str) -> Iterator[Any]:
    load = _extra("datasets", name).load_dataset
    source, _, split = name.removeprefix(DATASET).partition("@")
    try:
        yield from load(source, split=split or "train", streaming=True)
    except Exception as error:  # from many libraries, without a common ancestor
        raise ConfigError(
            f"the data set {name!r} cannot be read: {error}. Check its name and split."
        ) from error


def _parquet(name: str) -> Iterator[Any]:
    file = _extra("pyarrow.parquet", name).ParquetFile
    try:
        with file(name) as opened:
            for batch in opened.iter_batches(TOKENIZED_TEXTS):
                yield from batch.to_pylist()
    except Exception as error:  # those from pyarrow have no common ancestor
        raise ConfigError(
            f"the input {name!r} is not a Parquet file, or is damaged: {error}. Write it again."
        ) from error


def _text_documents(path: Path, bad: _Bad) -> Iterator[str]:
    """Yield text in parts of about TEXT_CHARACTERS characters, cut at line ends."""
    with _opened(path) as file:
        lines, size = [], 0
        for number, line in enumerate(file, 1):
            try:
                lines.append(require_text(f"{path}:{number}", line))
            except ConfigError as error:
                bad(error)
                continue
            size += len(line)
            if size >= TEXT_CHARACTERS:
                yield "".join(lines)
                lines, size = [], 0
        yield "".join(lines)


def _opened(path: Path) -> Any:
    try:
        # Surrogates mark invalid UTF-8, so that an error can name its line.
        return open_text(path, "surrogateescape")
    except OSError as error:
        raise ConfigError(
            f"the input {str(path)!r} cannot be read: {error}. Check its permissions."
        ) from error


def _arrays(path: Path) -> Iterator[NDArray[Any]]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"the input {str(path)!r} is not a numpy array: {error}. Write it with numpy.save."
        ) from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
        raise ConfigError(
            f"input {str(path)!r}: got {array.dtype} {list(array.shape)}; expected integers [n] or"
            " [rows, n]. Convert it first."
        )
    yield from (array if array.ndim == 2 else [array])


def _extra(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(
            f"the input {name!r} needs the package {package}, which is not installed. Install it:"
            f" {install_command('datasets')}."
        ) from error
