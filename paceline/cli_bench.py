"""The commands that measure: `paceline bench` and `paceline demo`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from paceline import demo
from paceline.cli_files import ResultFiles, table_console
from paceline.cli_options import (
    Device,
    Draft,
    Dtype,
    IgnoreEos,
    MaxNew,
    MinP,
    Model,
    Parallel,
    Patience,
    Penalty,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
)  # fmt: skip
from paceline.cli_paper import run_paper_command
from paceline.cli_parallel import one_voice
from paceline.drafters import REGISTRY, entry
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.bench import BenchConfig, BenchResult
    from paceline.parallel_ranks import Ranks

_BASELINES = ("transformers", "transformers:prompt_lookup", "transformers:assistant")
_DEMO_SECONDS = 90.0
_DEMO_DRAFTERS = ("none", "prompt_lookup", "sssd:datastore=demo,nodes=16", "lookahead", "draft_model", "specdec_pp", "ouroboros")
_DEMO_QUESTION = "Write a Python function that returns the largest of three numbers."

Drafters = Annotated[
    list[str] | None,
    typer.Option("--drafter", "--drafters", help="A drafter spec; repeat it, or separate with spaces or commas. Default: all."),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option("--baseline", "--baselines", help=f"Out of {', '.join(_BASELINES)}; 'none' for no baseline. Default: all."),
]
Prompts = Annotated[
    list[str] | None, typer.Option(help="JSONL file of prompts (id, category, turns); repeatable. Default: the embedded ones.")
]
Limit = Annotated[int, typer.Option(min=0, help="First prompts of each file; 0 = all.")]
Every = Annotated[int, typer.Option(min=1, help="Each n-th prompt of a file.")]
Batch = Annotated[int, typer.Option(min=1, help="Prompts answered together.")]
Scale = Annotated[str | None, typer.Option(metavar="WIDTHxLAYERS", help="Enlarge the target, function preserved, for its cost.")]
DraftScale = Annotated[str | None, typer.Option(metavar="WIDTHxLAYERS", help="Enlarge the draft model likewise.")]
Repeats = Annotated[int, typer.Option(min=1, help="Passes over all prompts.")]
Warmup = Annotated[int, typer.Option(min=0, help="Untimed answers per method beforehand.")]
MaxSeconds = Annotated[float, typer.Option(min=0, help="Stop after the prompt during which this time is up; 0 = never.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write results here.")]
PngFile = Annotated[Path | None, typer.Option("--png", help="Draw results here.")]
MarkdownFile = Annotated[Path | None, typer.Option("--markdown", help="Append a section here.")]
MaxNodes = Annotated[int, typer.Option(min=0, help="Most draft nodes per prompt and step.")]
PaperName = Annotated[
    str | None,
    typer.Option(
        "--paper",
        help="Measure the tables and figures of a paper again, on this model: lookahead, ouroboros, specdec_pp or sssd.",
    ),
]
Heads = Annotated[list[str] | None, typer.Option("--head", help="With --paper specdec_pp: an acceptance head; repeatable.")]
Recordings = Annotated[
    list[str] | None,
    typer.Option("--recording", help="With --paper specdec_pp: train heads on this recording, and compare; repeatable."),
]
Store = Annotated[str | None, typer.Option("--datastore", help="With --paper sssd: a token store of the target's tokenizer.")]
Memory = Annotated[bool, typer.Option("--memory", help="Measure peak memory, each method in its own process, instead of time.")]


def bench(
    context: typer.Context,
    model: Model = demo.NAME,
    draft_model: Draft = None,
    drafter: Drafters = None,
    baseline: Baselines = None,
    prompts: Prompts = None,
    limit: Limit = 0,
    every: Every = 1,
    max_new_tokens: MaxNew = 128,
    batch: Batch = 1,
    max_nodes: MaxNodes = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    ignore_eos: IgnoreEos = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
    cost_scale: Scale = None,
    draft_cost_scale: DraftScale = None,
    repeats: Repeats = 1,
    warmup: Warmup = 1,
    max_seconds: MaxSeconds = 0.0,
    json_file: JsonFile = None,
    png: PngFile = None,
    markdown_file: MarkdownFile = None,
    memory: Memory = False,
    paper: PaperName = None,
    head: Heads = None,
    recording: Recordings = None,
    datastore: Store = None,
    lookahead_parallel: Parallel = False,
    process_timeout: Patience = 60.0,
) -> None:
    """Time drafters beside transformers' own generate, interleaved prompt by prompt; check that answers are equal."""
    if paper is not None or head or recording or datastore:
        run_paper_command(context)
        return
    with one_voice(lookahead_parallel, device, process_timeout) as ranks:
        from paceline.bench import BenchConfig

        embedded = model == demo.NAME and draft_model in (None, demo.NAME)
        has_draft = draft_model is not None or embedded
        config = BenchConfig(
            model=model, draft_model=draft_model, drafters=_drafters(drafter, has_draft, embedded),
            baselines=_baselines(baseline, has_draft), prompts=tuple(prompts or ()), limit=limit, every=every,
            max_new_tokens=max_new_tokens, batch=batch, max_nodes=max_nodes, temperature=temperature, top_k=top_k, top_p=top_p,
            min_p=min_p, repetition_penalty=repetition_penalty, seed=seed, ignore_eos=ignore_eos, dtype=dtype, device=device,
            threads=threads, cost_scale=cost_scale, draft_cost_scale=draft_cost_scale, repeats=repeats, warmup=warmup,
            max_seconds=max_seconds, lookahead_parallel=ranks.size if ranks else 0,
        )  # fmt: skip
        if memory:
            _print_memory(config)
            return
        result = _run(config, ResultFiles(json_file, png, markdown_file), ranks)
        if not result.complete:
            raise typer.Exit(130)


def _drafters(asked: list[str] | None, has_draft: bool, embedded: bool) -> tuple[str, ...]:
    """Those asked for; else all that run with what there is."""
    if asked:
        return tuple(split_specs(asked, REGISTRY))
    fit = [name for name, found in REGISTRY.items() if has_draft or not found.needs_draft_model]
    if embedded:
        return tuple(with_store(name, demo.NAME) for name in fit)
    return tuple(name for name in fit if not (REGISTRY[name].needs_trained or REGISTRY[name].needs_store))


def _baselines(asked: list[str] | None, has_draft: bool) -> tuple[str, ...]:
    names = split_specs(asked, _BASELINES) if asked else [name for name in _BASELINES if has_draft or "assistant" not in name]
    return () if names == ["none"] else tuple(names)


def run_demo(
    output: Annotated[Path, typer.Option(help="Folder for the table's JSON and the picture.")] = Path("demo-output"),
    threads: Threads = None,
) -> None:
    """The main job on the embedded pair: drafters beside transformers, a table, a picture, one streamed answer."""
    from paceline.bench import BenchConfig, run_bench
    from paceline.cli import build_llm, print_stream
    from paceline.sequence import SamplingParams

    output.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    console.rule("1. The same answers: 24 prompts in float32, in batches of 8", align="left")
    check = run_bench(
        BenchConfig(
            model=demo.NAME, drafters=_DEMO_DRAFTERS, baselines=("transformers",), dtype="float32", batch=8, warmup=0,
            max_new_tokens=48, threads=threads,
        )
    )  # fmt: skip
    for figures in check.figures():
        if figures.compared:
            same = f"{figures.equal} of {figures.compared} answers have exactly the tokens of transformers"
            console.print(f"{figures.method}: {same}")
    console.rule("2. Sooner: one prompt at a time in bfloat16, every method on every prompt in turn", align="left")
    console.print(
        "The embedded target is small, so it is enlarged to about 150 M parameters that compute the same function: a forward"
        " costs what it does in a model of that size, an answer stays that of the trained model. In bfloat16 near ties may fall"
        " either way.\n"
    )
    config = BenchConfig(
        model=demo.NAME, drafters=_DEMO_DRAFTERS, baselines=_BASELINES, dtype="bfloat16", cost_scale="1024x12",
        max_new_tokens=48, threads=threads, max_seconds=_DEMO_SECONDS,
    )  # fmt: skip
    _run(config, ResultFiles(output / "demo.json", output / "demo.png"))
    console.rule("3. An answer as it comes; green: guessed by the draft model, kept by the target", align="left")
    console.print(f"[bold]> {_DEMO_QUESTION}[/bold]")
    llm = build_llm(demo.NAME, "draft_model", None, "auto", "auto", threads)
    print_stream(llm.stream(llm.chat_prompt([{"role": "user", "content": _DEMO_QUESTION}]), SamplingParams(max_new_tokens=64)))


def _print_memory(config: BenchConfig) -> None:
    from paceline.bench import memory_by_method

    if config.lookahead_parallel:
        raise ConfigError("--memory starts a process per method, and --lookahead-parallel shares one run; leave one of them out.")
    peaks = memory_by_method(config)
    first = next(iter(peaks))
    console = Console(highlight=False)
    for name, peak in peaks.items():
        console.print(f"{name}: {peak / 1e6:.1f} MB peak, {peak / peaks[first]:.3f} of {first}")


def _run(config: BenchConfig, files: ResultFiles, ranks: Ranks | None = None) -> BenchResult:
    from paceline.bench import markdown, print_table, run_bench, write_json, write_png

    first = ranks is None or ranks.rank == 0
    result = run_bench(config, progress=first, ranks=ranks)
    if first:
        print_table(result, table_console())
        files.write(partial(write_json, result), partial(write_png, result), lambda picture: markdown(result))
    return result


def split_specs(values: list[str], names: object) -> list[str]:
    """Specs out of repeated options: separated by spaces, or by commas that a known name follows."""
    known = "|".join(re.escape(name) for name in ("none", *names))  # type: ignore[misc]
    return [spec for value in values for spec in re.split(rf"\s+|,\s*(?=(?:{known})\b)", value) if spec]


def with_store(spec: str, datastore: str | None) -> str:
    """`spec` with the store, where the drafter takes one and none is named."""
    name, _, options = spec.partition(":")
    if datastore is None or "datastore=" in options or not hasattr(entry(name).load().Options, "datastore"):
        return spec
    return f"{name}:{','.join(filter(None, [options, f'datastore={datastore}']))}"
