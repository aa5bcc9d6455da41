"""The commands around a token store: `paceline datastore build | add | info | verify`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from paceline import demo
from paceline.cli_files import table_console
from paceline.text_mistral import MISTRAL, MistralTokenizer

if TYPE_CHECKING:
    from paceline.datastore import Info
    from paceline.datastore.writer import Progress as Report

datastore = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Token stores for the retrieval drafters: build one, add to it, look at it, verify it.",
)  # fmt: skip

Store = Annotated[str, typer.Argument(metavar="PATH", help="Folder of the store; to read, 'demo' is the embedded one.")]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files .jsonl (text | messages | prompt and output), .txt, .npy (ids) or .parquet, or datasets:NAME@SPLIT.",
    ),
]
Tokenizer = Annotated[str, typer.Option(help="Directory or hub id; 'demo' is the embedded pair's; 'mistral-common'.")]
AnswersOnly = Annotated[bool, typer.Option("--answers-only", help="Leave out prompts and what others than the assistant say.")]
ShardTokens = Annotated[int, typer.Option(min=0, help="Most tokens of a shard; 0 = as many as --memory allows.")]
Memory = Annotated[float, typer.Option(min=0.001, help="GiB for a shard while it is sorted.")]
Workers = Annotated[int, typer.Option(min=0, help="Threads that sort; 0 = one for each core.")]


@datastore.command("build")
def build_command(
    path: Store,
    inputs: Inputs,
    tokenizer: Tokenizer,
    vocab_size: Annotated[int, typer.Option(min=0, help="Ids below it are allowed; 0 = as many as the tokenizer has.")] = 0,
    answers_only: AnswersOnly = False,
    shard_tokens: ShardTokens = 0,
    memory: Memory = 2.0,
    workers: Workers = 0,
) -> None:
    """Build a store; one that is there is replaced once the new one is complete."""
    from paceline.datastore import build
    from paceline.datastore.inputs import documents

    loaded = load_tokenizer(tokenizer)
    found = documents(inputs, loaded, answers_only=answers_only)
    size = vocab_size or vocabulary_of(loaded)
    with shown_progress() as progress:
        build(
            path, found, size,
            tokenizer=loaded, shard_tokens=shard_tokens, memory=int(memory * 2**30), workers=workers, progress=progress,
        )  # fmt: skip
    print_summary(path)


@datastore.command("add")
def add_command(
    path: Store,
    inputs: Inputs,
    tokenizer: Tokenizer,
    answers_only: AnswersOnly = False,
    shard_tokens: ShardTokens = 0,
    memory: Memory = 2.0,
    workers: Workers = 0,
) -> None:
    """Add to a store; small shards are merged."""
    from paceline.datastore import add
    from paceline.datastore.inputs import documents

    loaded = load_tokenizer(tokenizer)
    found = documents(inputs, loaded, answers_only=answers_only)
    with shown_progress() as progress:
        add(
            path, found,
            tokenizer=loaded, shard_tokens=shard_tokens, memory=int(memory * 2**30), workers=workers, progress=progress,
        )  # fmt: skip
    print_summary(path)


@datastore.command("info")
def info_command(path: Store) -> None:
    """Show what a store holds."""
    from paceline.datastore import info

    found = info(path)
    out = table_console() or Console(highlight=False)
    for name, value in _facts(found):
        out.print(Text(f"{name:<12}{value}"))
    table = Table(box=None, pad_edge=False)
    for heading in ("shard", "tokens", "documents", "MB", "from"):
        table.add_column(heading, justify="left" if heading in ("shard", "from") else "right")
    for shard in found.shards:
        counts = (f"{shard.tokens:,}", f"{shard.documents:,}", f"{shard.size / 1e6:,.1f}")
        table.add_row(shard.name, *counts, "live appending" if shard.live else "build, add")
    out.print(table)


@datastore.command("verify")
def verify_command(path: Store) -> None:
    """Read every byte of a store; list all damage and exit with 1 if there is any."""
    from paceline.datastore import verify

    found = verify(path)
    out = Console(highlight=False, soft_wrap=True)
    for damage in found:
        out.print(Text(f"{damage.file}: {damage.what}"))
    if found:
        raise typer.Exit(1)
    out.print(Text(f"{path} is sound"))


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a command; 'demo' is the embedded pair's, 'mistral-common' the 32k one inside that package.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if name == MISTRAL:
        return MistralTokenizer()
    from paceline import loading

    source = demo.target_of(name)
    return loading.load_tokenizer(source, source)


def vocabulary_of(tokenizer: Any) -> int:
    """One more than the largest id of a tokenizer."""
    return 1 + max(map(int, tokenizer.get_vocab().values()))


def print_summary(path: str) -> None:
    """One line about a store that was written."""
    from paceline.datastore import info

    found = info(path)
    counts = f"{found.tokens:,} tokens in {found.documents:,} documents, {found.size / 1e6:,.1f} MB"
    Console(highlight=False, soft_wrap=True).print(Text(f"{path}: {counts}, {len(found.shards)} shard(s)"))


@contextmanager
def shown_progress() -> Iterator[Report]:
    """A progress bar on standard error, and the function that moves it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tokens]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task: TaskID = bar.add_task("read", total=None, tokens="")

        def report(what: str, done: int, total: int | None) -> None:
            of = f" of {total:,}" if total else ""
            bar.update(task, description=what, completed=done, total=total, tokens=f"{done:,}{of} tokens")

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
