"""Documents out of files: JSON lines, plain text, arrays of ids, and, through an extra, Parquet
files and `datasets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.gathering import Document
from paceline.errors import ConfigError
from paceline.recorded_answers.reading import read_answers, read_settings
from paceline.text.conversations import Message, chat_text, checked_messages, text_of
from paceline.text.tokens import require_text
from paceline.util.files import parse_json
from paceline.util.text_files import open_text

DATASET = "datasets:"  # prefix of the name of a data set
_SUFFIXES = (".jsonl", ".txt", ".npy", ".parquet")
_BATCH = 512  # texts tokenized together
_TEXT_PIECE = 1 << 20  # characters of a plain text tokenized at a time
_Bad = Callable[[ConfigError], None]
_FIELDS = "text, messages (a list of {role, content}), or prompt and output"


class _JsonLine(str):
    """A line of JSON lines, not read yet."""

    __slots__ = ()


def documents(
    inputs: Iterable[str],
    tokenizer: Any,
    *,
    answers_only: bool = False,
    left_out: Callable[[ConfigError], None] | None = None,
) -> Iterator[Document]:
    """Return the token ids of all documents of `inputs`, one file after the other.

    Args:
        inputs: names of files (.jsonl, .txt, .npy, .parquet), or 'datasets:NAME' with '@SPLIT'
            behind it if not 'train'. A record of JSON, Parquet or a data set is one document and
            has the fields text | messages | prompt and output; prompt and output may be ids, and
            each answer of a file of `paceline record` is such a record. A plain text is one
            document for each MiB of it, cut at the end of a line. Arrays of ids have one document,
            or in two dimensions one in each row.
        tokenizer: of transformers. Texts get no special tokens, conversations the chat template
            where it has one.
        answers_only: leave out prompts and what others than the assistant say.
        left_out: called with what is wrong with each record or line that is no document; None: that
            is raised.
    Raises:
        ConfigError: a file that is not there or of another kind, recorded answers that are damaged,
            unfinished or of another tokenizer, or a record that is no document (no JSON, no UTF-8,
            other fields); it and the line are named.
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
            f"input {str(path)!r}: got a {path.suffix or 'nameless'} file; expected"
            f" {', '.join(_SUFFIXES)} or {DATASET}NAME. Convert it first."
        )
    if not path.is_file():
        raise ConfigError(
            f"input {str(path)!r}: got a name of no such file; expected one that is there. Check"
            " the path."
        )


def check_recorded(path: str | Path, tokenizer: Any) -> bool:
    """Return whether a file is one of `paceline record`, and refuse one of another tokenizer.

    Args:
        tokenizer: of transformers, or its fingerprint; None = not known, which fits all.
    Raises:
        ConfigError: the tokenizer is another one; both fingerprints are named.
    """
    settings = read_settings(path)
    if settings is None:
        return False
    recorded, given = settings["tokenizer"], fingerprint_of(tokenizer)
    if None not in (recorded, given) and recorded != given:
        raise ConfigError(
            f"answers {str(path)!r}: got the tokenizer {given}; expected {recorded}, whose ids they"
            " are. Name that tokenizer, or record the answers of another model."
        )
    return True


def _raised(error: ConfigError) -> None:
    raise error


def _texts(
    name: str, tokenizer: Any, answers_only: bool, bad: _Bad
) -> Iterator[list[str | list[int]]]:
    """Yield each document as the parts that are tokenized one by one and put together."""
    if name.endswith(".txt"):
        for piece in _pieces(Path(name), bad):
            yield [piece]
        return
    for where, record in _records(name):
        try:
            parts = _parts(
                where,
                parse_record(where, record) if isinstance(record, _JsonLine) else record,
                tokenizer,
                answers_only,
            )
            for part in parts:
                if isinstance(part, str):
                    require_text(where, part)
        except ConfigError as error:
            bad(error)
            continue
        yield parts


def _tokenized(texts: Iterator[list[str | list[int]]], tokenizer: Any) -> Iterator[list[int]]:
    """Yield the ids of each document, many tokenized in one call."""
    while batch := list(islice(texts, _BATCH)):
        strings = [part for parts in batch for part in parts if isinstance(part, str)]
        ids = iter(tokenizer(strings, add_special_tokens=False)["input_ids"] if strings else ())
        for parts in batch:
            yield [
                token for part in parts for token in (next(ids) if isinstance(part, str) else part)
            ]


def _parts(where: str, record: Any, tokenizer: Any, answers_only: bool) -> list[str | list[int]]:
    """Return the parts of one record, by its fields."""
    if isinstance(record, Mapping):
        text, messages = record.get("text"), record.get("messages")
        prompt, output = record.get("prompt", ""), record.get("output")
        if isinstance(text, str):
            return [text]
        if messages is not None:
            return _conversation(
                where, checked_messages(messages, f"{where}: messages"), tokenizer, answers_only
            )
        if _is_part(output) and _is_part(prompt):
            return [output] if answers_only else [prompt, output]
    fields = ", ".join(map(str, record)) if isinstance(record, Mapping) else type(record).__name__
    raise ConfigError(
        f"{where}: got a record of {fields or 'nothing'}; expected {_FIELDS}. Rename its fields,"
        " or leave it out."
    )


def _is_part(value: Any) -> TypeGuard[str | list[int]]:
    return isinstance(value, str) or (
        isinstance(value, list) and all(type(token) is int for token in value)
    )


def _conversation(
    where: str, messages: list[Message], tokenizer: Any, answers_only: bool
) -> list[str | list[int]]:
    if answers_only:
        return [
            "\n".join(text_of(message) for message in messages if message["role"] == "assistant")
        ]
    if getattr(tokenizer, "chat_template", None):
        return [chat_text(tokenizer, messages, where)]
    return ["\n".join(map(text_of, messages))]


def _records(name: str) -> Iterator[tuple[str, Any]]:
    """Yield records, or the lines they are in, with a description of where each is."""
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
                    yield f"{name}, line {number}", _JsonLine(line)


def _dataset(name: str) -> Iterator[Any]:
    load = _extra("datasets", name).load_dataset
    source, _, split = name.removeprefix(DATASET).partition("@")
    try:
        yield from load(source, split=split or "train", streaming=True)
    except Exception as error:  # of many libraries: not there, no network, no such split, damaged
        raise ConfigError(
            f"input {name!r}: got {error}, so the data set cannot be read; expected one. Check its"
            " name and split."
        ) from error


def _parquet(name: str) -> Iterator[Any]:
    file = _extra("pyarrow.parquet", name).ParquetFile
    try:
        with file(name) as opened:
            for batch in opened.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except Exception as error:  # pyarrow's have no common ancestor
        raise ConfigError(
            f"input {name!r} is no Parquet file, or a damaged one: got {error}; expected a sound"
            " one. Make it again."
        ) from error


def parse_record(where: str, line: str) -> Any:
    """Return what a line of JSON lines says.

    Raises:
        ConfigError: it is no UTF-8, or not JSON; `where` names the line.
    """
    require_text(where, line)
    try:
        return parse_json(line)
    except ValueError as error:
        raise ConfigError(
            f"{where}: it is not JSON: got {error}; expected one record in each line. Convert it"
            " first."
        ) from error


def _pieces(path: Path, bad: _Bad) -> Iterator[str]:
    """Yield a plain text in pieces of about _TEXT_PIECE characters, cut at the ends of lines."""
    with _opened(path) as file:
        piece, size = [], 0
        for number, line in enumerate(file, 1):
            try:
                piece.append(require_text(f"{path}, line {number}", line))
            except ConfigError as error:
                bad(error)
                continue
            size += len(line)
            if size >= _TEXT_PIECE:
                yield "".join(piece)
                piece, size = [], 0
        yield "".join(piece)


def _opened(path: Path) -> Any:
    try:
        # the line that is not UTF-8 is named, and no other
        return open_text(path, "surrogateescape")
    except OSError as error:
        raise ConfigError(
            f"input {str(path)!r}: got {error}; expected a file that can be read. Check its rights."
        ) from error


def _arrays(path: Path) -> Iterator[NDArray[Any]]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"input {str(path)!r} is no array of numpy: got {error}; expected one. Write it with"
            " numpy.save."
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
            f"input {name!r}: expected the package {package}, which reads it; got none installed."
            " Install it: pip install 'paceline[datasets]'"
        ) from error
