"""Implement the commands of `paceline datastore`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.invalid_records import InvalidRecords
from paceline.cli.loading import load_tokenizer
from paceline.cli.options import command_group, flattened
from paceline.cli.show import out, table_console
from paceline.util.config import require_range
from paceline.util.plurals import counted

if TYPE_CHECKING:
    from paceline.datastore import Info
    from paceline.datastore.options import Progress as Report

datastore = command_group("datastore")

Store = Annotated[
    str,
    Parameter(
        name="PATH", help="Folder of the datastore; 'demo' is the built-in, read-only datastore."
    ),
]
Inputs = Annotated[
    str,
    Parameter(
        name="INPUT",
        required=True,
        help="File to add: .jsonl, .txt, .npy (token ids) or .parquet; or a data set, written as"
        " datasets:NAME@SPLIT; repeatable. Each line of a .jsonl file is an answer from"
        " `paceline record`, or a JSON object with a `text` field, a `messages` field, or the"
        " fields `prompt` and `output`.",
    ),
]
Tokenizer = Annotated[
    str,
    Parameter(
        help="Tokenizer of the target model: directory or hub id; 'demo' and 'smollm2' are built-in"
        " models; 'mistral-common' is the 32k tokenizer of the package with that name."
    ),
]


@flattened("Writing")
@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options for writing shards.

    Attributes:
        shard_tokens: Maximum number of tokens per shard (data file); at least 0. With 0, only
            --memory limits the size of shards.
        memory: Maximum memory for sorting a shard, in GiB; at least 0.001.
        workers: Number of threads that sort shards; at least 0; 0 uses one thread per core.

    Raises:
        ConfigError: A value is out of range.
    """

    shard_tokens: int = 0
    memory: float = 2.0
    workers: int = 0

    def __post_init__(self) -> None:
        for name, low in (("shard_tokens", 0), ("memory", 0.001), ("workers", 0)):
            require_range("datastore", name, getattr(self, name), low)


@datastore.command(sort_key=1)
def build(
    path: Store,
    /,
    *inputs: Inputs,
    tokenizer: Tokenizer,
    vocab_size: int = 0,
    answers_only: bool = False,
    skip_invalid: bool = False,
    writing: WriteOptions = WriteOptions(),
) -> None:
    """Build a datastore from text files.

    The command replaces an existing datastore once the new one is complete.

    Example: paceline datastore build store texts.jsonl --tokenizer smollm2

    Args:
        vocab_size: Vocabulary size; at least 0. Every token id must be smaller than this number.
            With 0, the number is the tokenizer's vocabulary size.
        answers_only: Add only the answers (assistant messages and outputs), not the prompts.
        skip_invalid: Skip invalid records. Without this option, an invalid record stops the
            command.
    """
    from paceline.datastore import build as build_store
    from paceline.datastore.inputs import documents

    require_range("datastore", "vocab_size", vocab_size, 0)
    loaded = load_tokenizer(tokenizer)
    left_out = InvalidRecords(skip_invalid)
    documents_read = left_out.counted(
        documents(inputs, loaded, answers_only=answers_only, left_out=left_out)
    )
    size = vocab_size or vocabulary_of(loaded)
    with shown_progress() as progress:
        build_store(
            path,
            documents_read,
            size,
            tokenizer=loaded,
            progress=progress,
            **_writer_arguments(writing),
        )
    left_out.report()
    print_summary(path)


@datastore.command(sort_key=2)
def add(
    path: Store,
    /,
    *inputs: Inputs,
    tokenizer: Tokenizer,
    answers_only: bool = False,
    skip_invalid: bool = False,
    writing: WriteOptions = WriteOptions(),
) -> None:
    """Add text files to a datastore, and merge small shards (data files).

    Example: paceline datastore add store more.jsonl --tokenizer smollm2

    Args:
        answers_only: Add only the answers (assistant messages and outputs), not the prompts. The
            datastore does not record this choice, so pass the option whenever `datastore build` had
            it.
        skip_invalid: Skip invalid records. Without this option, an invalid record stops the
            command.
    """
    from paceline.datastore import add as add_documents
    from paceline.datastore.inputs import documents

    loaded = load_tokenizer(tokenizer)
    left_out = InvalidRecords(skip_invalid)
    documents_read = left_out.counted(
        documents(inputs, loaded, answers_only=answers_only, left_out=left_out)
    )
    with shown_progress() as progress:
        add_documents(
            path, documents_read, tokenizer=loaded, progress=progress, **_writer_arguments(writing)
        )
    left_out.report()
    print_summary(path)


@datastore.command(name="info", sort_key=3)
def show_info(path: Store, /) -> None:
    """Show the size, vocabulary, tokenizer and shards of a datastore.

    Example: paceline datastore info store
    """
    from paceline.datastore import info

    store_info = info(path)
    console = table_console() or Console(highlight=False)
    for name, value in _facts(store_info):
        console.print(Text(f"{name:<12}{value}"))
    table = Table(box=None, pad_edge=False)
    for heading in ("shard", "tokens", "documents", "MB", "from"):
        table.add_column(heading, justify="left" if heading in ("shard", "from") else "right")
    for shard in store_info.shards:
        counts = (f"{shard.tokens:,}", f"{shard.documents:,}", f"{shard.size / 1e6:,.1f}")
        table.add_row(shard.name, *counts, "online updates" if shard.live else "build, add")
    console.print(table)


@datastore.command(sort_key=4)
def verify(path: Store, /) -> int:
    """Read every byte of a datastore, and list all damage.

    The exit status is 1 if any damage is found.

    Example: paceline datastore verify store
    """
    from paceline.datastore import verify as verify_store

    damages = verify_store(path)
    for damage in damages:
        out.print(Text(f"{damage.file}: {damage.what}"))
    if not damages:
        out.print(Text(f"{path} is intact"))
    return 1 if damages else 0


def vocabulary_of(tokenizer: Any) -> int:
    """Return the vocabulary size of a tokenizer: its largest id plus one."""
    return 1 + max(map(int, tokenizer.get_vocab().values()))


def _writer_arguments(writing: WriteOptions) -> dict[str, Any]:
    return asdict(writing) | {"memory": int(writing.memory * 2**30)}


def print_summary(path: str) -> None:
    """Print one line about a datastore that has been written."""
    from paceline.datastore import info

    store_info = info(path)
    counts = (
        f"{store_info.tokens:,} tokens in {counted(store_info.documents, 'document')},"
        f" {store_info.size / 1e6:,.1f} MB, {counted(len(store_info.shards), 'shard')}"
    )
    out.print(Text(f"{path}: {counts}"))


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Show a progress bar on standard error, and yield the function that updates it."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    from paceline.report.progress import progress_bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tokens]}"),
        TimeElapsedColumn(),
    )
    with progress_bar(*columns) as bar:
        task = bar.add_task("read", total=None, tokens="")

        def report(phase: str, done: int, total: int | None) -> None:
            total_text = f" of {total:,}" if total else ""
            bar.update(
                task,
                description=phase,
                completed=done,
                total=total,
                tokens=f"{done:,}{total_text} tokens",
            )

        yield report


def _facts(info: Info) -> list[tuple[str, str]]:
    return [
        ("store", str(info.path)),
        ("vocabulary", f"{info.vocab_size:,} ids, {info.dtype}"),
        ("tokenizer", info.tokenizer or "unknown"),
        ("tokens", f"{info.tokens:,}"),
        ("documents", f"{info.documents:,}"),
        ("size", f"{info.size / 1e6:,.1f} MB in {counted(len(info.shards), 'shard')}"),
    ]
