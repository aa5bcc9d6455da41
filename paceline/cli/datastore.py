"""The commands around a token store: `paceline datastore build | add | info | verify |
calibrate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.loading import load_tokenizer
from paceline.cli.options import flattened
from paceline.cli.replay import Traces, TraceTokenizer, fit_calibration, read
from paceline.cli.show import out, print_note, table_console
from paceline.errors import ConfigError
from paceline.util.config import require_range

if TYPE_CHECKING:
    from paceline.datastore import Info
    from paceline.datastore.gathering import Document
    from paceline.datastore.writer import Progress as Report

datastore = App(
    name="datastore",
    help="Token stores for the retrieval drafters: build one, add to it, look at it, verify it.",
)

_NAMED = 10  # records left out, that are named
Store = Annotated[
    str, Parameter(name="PATH", help="folder of the store; to read, 'demo' is the embedded one.")
]
Inputs = Annotated[
    str,
    Parameter(
        name="INPUT",
        required=True,
        help="files .jsonl (text | messages | prompt and output), .txt, .npy (ids) or .parquet, or"
        " datasets:NAME@SPLIT.",
    ),
]
Tokenizer = Annotated[
    str, Parameter(help="directory or hub id; 'demo' is the embedded pair's; 'mistral-common'.")
]


@flattened("Writing")
@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How shards are written.

    Attributes:
        shard_tokens: most tokens of a shard; 0 = as many as --memory allows.
        memory: GiB for a shard while it is sorted.
        workers: threads that sort; 0 = one for each core.

    Raises:
        ConfigError: a value out of range.
    """

    shard_tokens: int = 0
    memory: float = 2.0
    workers: int = 0

    def __post_init__(self) -> None:
        for name, low in (("shard_tokens", 0), ("memory", 0.001), ("workers", 0)):
            require_range("datastore", name, getattr(self, name), low)


@datastore.command
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
    """Build a store; one that is there is replaced once the new one is complete.

    Args:
        vocab_size: ids below it are allowed; 0 = as many as the tokenizer has.
        answers_only: leave out prompts and what others than the assistant say.
        skip_invalid: leave out records that cannot be read; else none may be, and nothing is
            written.
    """
    from paceline.datastore import build as build_store
    from paceline.datastore.inputs import documents

    require_range("datastore", "vocab_size", vocab_size, 0)
    loaded = load_tokenizer(tokenizer)
    left_out = LeftOut(skip_invalid)
    found = left_out.counted(
        documents(inputs, loaded, answers_only=answers_only, left_out=left_out)
    )
    size = vocab_size or vocabulary_of(loaded)
    with shown_progress() as progress:
        build_store(path, found, size, tokenizer=loaded, progress=progress, **_means(writing))
    left_out.tell()
    print_summary(path)


@datastore.command
def add(
    path: Store,
    /,
    *inputs: Inputs,
    tokenizer: Tokenizer,
    answers_only: bool = False,
    skip_invalid: bool = False,
    writing: WriteOptions = WriteOptions(),
) -> None:
    """Add to a store; small shards are merged.

    Args:
        answers_only: leave out prompts and what others than the assistant say.
        skip_invalid: leave out records that cannot be read; else none may be, and nothing is
            written.
    """
    from paceline.datastore import add as add_documents
    from paceline.datastore.inputs import documents

    loaded = load_tokenizer(tokenizer)
    left_out = LeftOut(skip_invalid)
    found = left_out.counted(
        documents(inputs, loaded, answers_only=answers_only, left_out=left_out)
    )
    with shown_progress() as progress:
        add_documents(path, found, tokenizer=loaded, progress=progress, **_means(writing))
    left_out.tell()
    print_summary(path)


@datastore.command(name="info")
def show_info(path: Store, /) -> None:
    """Show what a store holds."""
    from paceline.datastore import info

    found = info(path)
    console = table_console() or Console(highlight=False)
    for name, value in _facts(found):
        console.print(Text(f"{name:<12}{value}"))
    table = Table(box=None, pad_edge=False)
    for heading in ("shard", "tokens", "documents", "MB", "from"):
        table.add_column(heading, justify="left" if heading in ("shard", "from") else "right")
    for shard in found.shards:
        counts = (f"{shard.tokens:,}", f"{shard.documents:,}", f"{shard.size / 1e6:,.1f}")
        table.add_row(shard.name, *counts, "live appending" if shard.live else "build, add")
    console.print(table)


@datastore.command
def verify(path: Store, /) -> int:
    """Read every byte of a store; list all damage and exit with 1 if there is any."""
    from paceline.datastore import verify as verify_store

    found = verify_store(path)
    for damage in found:
        out.print(Text(f"{damage.file}: {damage.what}"))
    if not found:
        out.print(Text(f"{path} is sound"))
    return 1 if found else 0


@datastore.command
def calibrate(
    path: Store, /, *traces: Traces, output: Path, tokenizer: TraceTokenizer = None
) -> None:
    """Fit the calibration of sssd for a store on recorded answers; the same as `paceline replay
    --fit`.

    Args:
        output: file for the calibration.
    """
    found, loaded = read(traces, tokenizer)
    fit_calibration(found, path, loaded, output)


class LeftOut:
    """Records that are no documents: counted, and the first of them named.

    Args:
        skip: leave them out. Otherwise they end the command before anything is written, all that
            are named at once.
    """

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self._errors: list[ConfigError] = []
        self._count = 0

    def __call__(self, error: ConfigError) -> None:
        """Note one.

        Raises:
            ConfigError: it is not left out, and there have been as many as are named.
        """
        self._count += 1
        if self._count <= _NAMED:
            self._errors.append(error)
        if self._count == _NAMED and not self._skip:
            self._refuse(f"at least {_NAMED}")

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass documents on.

        Raises:
            ConfigError: there were records, and none was a document (it is the first one's), or one
                was not and none may be left out.
        """
        read = 0
        for document in documents:
            read += 1
            yield document
        if self._errors and not read:
            raise self._errors[0]
        if self._errors and not self._skip:
            self._refuse(str(self._count))

    def _refuse(self, count: str) -> None:
        for error in self._errors:
            print_note(f"invalid: {error}")
        raise ConfigError(
            f"inputs: got {count} invalid records; expected none, and nothing was written. Correct"
            " them, or pass --skip-invalid."
        )

    def tell(self) -> None:
        """Say on standard error what was left out, if anything was."""
        for error in self._errors:
            print_note(f"left out: {error}")
        if self._count:
            more = f", of which the first {_NAMED} are named" if self._count > _NAMED else ""
            print_note(f"{self._count} records were left out{more}")


def vocabulary_of(tokenizer: Any) -> int:
    """Return one more than the largest id of a tokenizer."""
    return 1 + max(map(int, tokenizer.get_vocab().values()))


def _means(writing: WriteOptions) -> dict[str, Any]:
    return asdict(writing) | {"memory": int(writing.memory * 2**30)}


def print_summary(path: str) -> None:
    """Print one line about a store that was written."""
    from paceline.datastore import info

    found = info(path)
    counts = f"{found.tokens:,} tokens in {found.documents:,} documents, {found.size / 1e6:,.1f} MB"
    out.print(Text(f"{path}: {counts}, {len(found.shards)} shard(s)"))


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Show a progress bar on standard error; yield the function that moves it."""
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

        def report(what: str, done: int, total: int | None) -> None:
            of = f" of {total:,}" if total else ""
            bar.update(
                task, description=what, completed=done, total=total, tokens=f"{done:,}{of} tokens"
            )

        yield report


def _facts(found: Info) -> list[tuple[str, str]]:
    return [
        ("store", str(found.path)),
        ("vocabulary", f"{found.vocab_size:,} ids, {found.dtype}"),
        ("tokenizer", found.tokenizer or "not known"),
        ("tokens", f"{found.tokens:,}"),
        ("documents", f"{found.documents:,}"),
        ("size", f"{found.size / 1e6:,.1f} MB in {len(found.shards)} shard(s)"),
    ]
