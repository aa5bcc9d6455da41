"""The `paceline` command: generate, chat, drafters, bench, replay, head, datastore, demo."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline import __version__, demo
from paceline.cli_bench import bench, run_demo
from paceline.cli_datastore import datastore
from paceline.cli_head import head
from paceline.cli_options import (
    ChatTemplate,
    Device,
    Draft,
    DrafterSpec,
    Dtype,
    IgnoreEos,
    MaxNew,
    MinP,
    Model,
    Parallel,
    Patience,
    Penalty,
    Seed,
    Stop,
    Temperature,
    Threads,
    TopK,
    TopP,
    use_threads,
)  # fmt: skip
from paceline.cli_parallel import one_voice, refuse_standard_input
from paceline.cli_replay import replay_command
from paceline.drafters import REGISTRY, entry
from paceline.errors import PacelineError
from paceline.sequence import SamplingParams

if TYPE_CHECKING:
    from paceline.llm import LLM, Chunk, Completion
    from paceline.parallel_ranks import Ranks

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Lossless speculative decoding: the same answers from the same weights, sooner.",
)  # fmt: skip

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False)
_ACCEPTED = "green"

app.command()(bench)
app.command("demo")(run_demo)
app.command("replay")(replay_command)
app.add_typer(head, name="head")
app.add_typer(datastore, name="datastore")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
def generate(
    prompts: Annotated[list[str], typer.Argument(help="One or more prompts; '-' reads one from standard input.")],
    model: Model = demo.NAME,
    drafter: DrafterSpec = "prompt_lookup",
    draft_model: Draft = None,
    use_chat: ChatTemplate = False,
    max_new_tokens: MaxNew = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
    lookahead_parallel: Parallel = False,
    process_timeout: Patience = 60.0,
) -> None:
    """Answer prompts; a single one is streamed, several run as a batch."""
    with one_voice(lookahead_parallel, device, process_timeout) as ranks:
        refuse_standard_input(lookahead_parallel, prompts)
        params = SamplingParams(
            max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, tuple(stop or ()), ignore_eos
        )
        texts = [sys.stdin.read() if text == "-" else text for text in prompts]
        llm = build_llm(model, drafter, draft_model, dtype, device, threads, ranks)
        asked: list[Any] = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts] if use_chat else texts
        if len(asked) == 1:
            print_stream(llm.stream(asked[0], params))
            return
        for text, completion in zip(texts, llm.generate(asked, params), strict=True):
            out.rule(Text(text.strip().splitlines()[0][:60] if text.strip() else ""), align="left")
            out.print(Text(completion.text))
            err.print(Text(summary(completion), style="dim"))


@app.command()
def chat(
    model: Model = demo.NAME,
    drafter: DrafterSpec = "prompt_lookup",
    draft_model: Draft = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_new_tokens: MaxNew = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Talk to the model. Drafted-and-accepted tokens are green. Ctrl-C stops an answer, Ctrl-D or /quit leaves."""
    params = SamplingParams(max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed)
    llm = build_llm(model, drafter, draft_model, dtype, device, threads)
    opening = [{"role": "system", "content": system}] if system else []
    llm.chat_prompt([*opening, {"role": "user", "content": "-"}])  # a model without a chat template is refused here
    messages = list(opening)
    err.print(Text(f"{model} with {drafter}. /reset forgets the conversation, /quit leaves.", style="dim"))
    while True:
        try:
            text = out.input("[bold]> [/bold]") if sys.stdin.isatty() else input()
        except (EOFError, KeyboardInterrupt):
            return
        if text.strip() == "/quit":
            return
        if text.strip() == "/reset":
            messages = list(opening)
        elif text.strip():
            messages.append({"role": "user", "content": text})
            try:
                answer = print_stream(llm.stream(llm.chat_prompt(messages), params))
            except PacelineError as error:  # the conversation outgrew the context: say so, and go on
                messages.pop()
                err.print(Text(f"error: {error}", style="red"))
                continue
            messages.append({"role": "assistant", "content": answer})


@app.command()
def drafters() -> None:
    """List the drafters with their options and defaults."""
    table = Table(box=None, pad_edge=False)
    for heading in ("drafter", "options and defaults", "what it does"):
        table.add_column(heading, overflow="fold")
    for name, found in REGISTRY.items():
        options = dataclasses.fields(entry(name).load().Options)
        needs = " (needs --draft-model)" if found.needs_draft_model else " (needs datastore=PATH)" if found.needs_store else ""
        table.add_row(name, " ".join(f"{o.name}={o.default}" for o in options), found.summary + needs)
    out.print(table)


def build_llm(
    model: str, drafter: str, draft_model: str | None, dtype: str, device: str, threads: int | None, ranks: Ranks | None = None
) -> LLM:
    """The engine of a command; 'demo' names the embedded models."""
    from paceline.llm import LLM

    use_threads(threads)
    name = demo.draft_name(model, draft_model)
    needs_draft = entry(drafter.partition(":")[0].strip()).needs_draft_model
    draft = demo.draft_of(name) if needs_draft and name is not None else None
    return LLM(demo.target_of(model), drafter, draft, dtype=dtype, device=device, lookahead_parallel=ranks or False)


def print_stream(chunks: Iterator[Chunk]) -> str:
    """Show an answer as it comes; Ctrl-C ends it early. Returns its text."""
    text = ""
    try:
        for chunk in chunks:
            for piece, accepted in chunk.pieces:
                out.print(Text(piece, style=_ACCEPTED if accepted else ""), end="")
            out.file.flush()
            text += chunk.text
            if chunk.completion is not None:
                out.print()
                err.print(Text(summary(chunk.completion), style="dim"))
    except KeyboardInterrupt:
        out.print()
        err.print(Text("stopped", style="dim"))
    finally:
        chunks.close()  # type: ignore[attr-defined]
    return text


def summary(completion: Completion) -> str:
    """One line of figures for an answer."""
    stats = completion.stats
    return (
        f"[{stats.new_tokens} tokens, {stats.new_tokens / stats.seconds:.1f} tokens/s, "
        f"{stats.tokens_per_forward:.2f} tokens per forward, ended by {completion.finish_reason}]"
    )


def main() -> None:
    """Entry point: errors of ours are one line and exit status 2, Ctrl-C is 130, a closed pipe is silent."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except PacelineError as error:
        err.print(Text(f"error: {error}", style="red"))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
