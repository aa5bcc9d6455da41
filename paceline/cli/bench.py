"""The command `paceline bench`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from paceline import demo
from paceline.bench.serving.settings import LoadOptions, ServingConfig
from paceline.bench.settings import ASSISTANT, LOOKUP, PLAIN, BenchConfig
from paceline.cli.files import ResultFiles
from paceline.cli.options import ParallelOptions, flattened, split_specs, with_store, without
from paceline.cli.parallel import joined_ranks
from paceline.cli.show import INTERRUPTED
from paceline.drafters import REGISTRY, available
from paceline.errors import ConfigError
from paceline.util.options import ModelOptions, PromptOptions, flat

if TYPE_CHECKING:
    from paceline.bench import BenchResult
    from paceline.engine.parallel.ranks import Ranks

BASELINES = (PLAIN, LOOKUP, ASSISTANT)
flattened("Measuring")(BenchConfig)
flattened("With --serve")(LoadOptions)


def bench(
    *,
    drafters: Annotated[list[str] | None, Parameter(name=("--drafter", "--drafters"))] = None,
    baselines: Annotated[list[str] | None, Parameter(name=("--baseline", "--baselines"))] = None,
    memory: bool = False,
    serve: bool = False,
    load: LoadOptions = LoadOptions(),
    config: Annotated[
        BenchConfig, without("drafters", "baselines", "stop", "lookahead_parallel")
    ] = BenchConfig(),
    files: ResultFiles = ResultFiles(),
    parallel: ParallelOptions = ParallelOptions(),
) -> int:
    """Time drafters beside transformers' own generate, interleaved prompt by prompt; check that
    answers are equal.

    Args:
        drafters: a drafter spec; repeat it, or separate with spaces or commas; default: all that
            run with what is there.
        baselines: out of transformers, transformers:prompt_lookup, transformers:assistant; 'none'
            for no baseline; default: all.
        memory: measure peak memory, each method in its own process, instead of time.
        serve: measure a server under load: drafters in turn beside plain decoding, answers compared
            with its answers.
    """
    if serve:
        return _serve(config, drafters, load, files)
    if load != LoadOptions():
        raise ConfigError(
            "bench: got options of a load without --serve; expected it beside them. Add --serve."
        )
    with joined_ranks(parallel, config.models.device) as ranks:
        has_draft = config.models.draft_model is not None or _embedded(config.models)
        config = replace(
            config,
            drafters=chosen_drafters(drafters, config.models),
            baselines=_baselines(baselines, has_draft),
            lookahead_parallel=ranks.size if ranks else 0,
        )
        if memory:
            _print_memory(config)
            return 0
        return 0 if run_and_report(config, files, ranks).complete else INTERRUPTED


def _serve(
    config: BenchConfig, drafters: list[str] | None, load: LoadOptions, files: ResultFiles
) -> int:
    """Run the load bench, print its table and write the files asked for."""
    from paceline.bench.serving import markdown, print_table, run_serving, write_json, write_png

    taken = {
        "max_new_tokens",
        "max_nodes",
        "repeats",
        "drafters",
        *flat(ModelOptions()),
        *flat(PromptOptions()),
    }
    plain = flat(BenchConfig())
    if others := [
        name for name, value in flat(config).items() if name not in taken and value != plain[name]
    ]:
        names = ", ".join("--" + name.replace("_", "-") for name in others)
        raise ConfigError(
            f"bench: got {names} with --serve, which has no such options; expected none. Leave"
            " them out."
        )
    result = run_serving(
        ServingConfig(
            config.models,
            config.selection,
            chosen_drafters(drafters, config.models),
            load,
            config.sampling.max_new_tokens,
            config.max_nodes,
            config.repeats,
        )
    )
    print_table(result, files.console())
    files.write(
        partial(write_json, result),
        partial(write_png, result),
        lambda picture: markdown(result, picture),
    )
    return 0 if result.complete else INTERRUPTED


def run_and_report(
    config: BenchConfig, files: ResultFiles, ranks: Ranks | None = None
) -> BenchResult:
    """Run a bench, print its table and write the files asked for."""
    from paceline.bench import RunOptions, markdown, print_table, run_bench, write_json, write_png

    first = ranks is None or ranks.rank == 0
    result = run_bench(config, progress=first, options=RunOptions(ranks=ranks))
    if first:
        print_table(result, files.console())
        files.write(
            partial(write_json, result),
            partial(write_png, result),
            lambda picture: markdown(result),
        )
    return result


def chosen_drafters(asked: list[str] | None, models: ModelOptions) -> tuple[str, ...]:
    """Return those asked for; else all that run with what there is."""
    if asked:
        return tuple(split_specs(asked, available()))
    embedded = _embedded(models)
    has_draft = models.draft_model is not None or embedded
    fit = [name for name, found in REGISTRY.items() if has_draft or not found.needs_draft_model]
    if embedded:
        return tuple(with_store(name, demo.NAME) for name in fit)
    return tuple(
        name for name in fit if not (REGISTRY[name].needs_trained or REGISTRY[name].needs_store)
    )


def _embedded(models: ModelOptions) -> bool:
    """Whether it is the embedded pair."""
    return models.model == demo.NAME and models.draft_model in (None, demo.NAME)


def _baselines(asked: list[str] | None, has_draft: bool) -> tuple[str, ...]:
    names = (
        split_specs(asked, BASELINES)
        if asked
        else [name for name in BASELINES if has_draft or name != ASSISTANT]
    )
    return () if names == ["none"] else tuple(names)


def _print_memory(config: BenchConfig) -> None:
    from paceline.bench import memory_by_method

    if config.lookahead_parallel:
        raise ConfigError(
            "--memory starts a process per method, and --lookahead-parallel shares one run; leave"
            " one of them out."
        )
    peaks = memory_by_method(config)
    first = next(iter(peaks))
    console = Console(highlight=False)
    for name, peak in peaks.items():
        console.print(f"{name}: {peak / 1e6:.1f} MB peak, {peak / peaks[first]:.3f} of {first}")
