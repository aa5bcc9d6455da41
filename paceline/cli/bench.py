"""Implement the command `paceline bench`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from paceline import demo
from paceline.bench.serving.settings import LoadOptions, ServingConfig
from paceline.bench.settings import ASSISTANT, LOOKUP, PLAIN, BenchConfig
from paceline.cli.files import ResultFiles
from paceline.cli.options import (
    MethodOptions,
    ParallelOptions,
    TargetModel,
    flattened,
    split_specs,
    with_store,
    without,
)
from paceline.cli.parallel import joined_ranks
from paceline.cli.show import INTERRUPTED
from paceline.drafters import REGISTRY
from paceline.errors import ConfigError
from paceline.util.options import ENGINE, EngineName, ModelOptions, PromptOptions, changed, flat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.bench import BenchResult
    from paceline.engine.parallel.ranks import Ranks

_UNTRAINED = "state_head"  # paceline ships with no head for the demo models
BASELINES = (PLAIN, LOOKUP, ASSISTANT)
flattened("Measuring")(BenchConfig)
flattened("With --serve")(LoadOptions)


@flattened("Quantity")
@dataclass(frozen=True, slots=True)
class Quantity:
    """Selects what a benchmark measures: by default, the speed of each method.

    Attributes:
        serve: Measure a server under load instead of timing separate calls. The benchmark compares
            the server's answers with those of plain decoding.
    """

    serve: bool = False


def bench(
    model: TargetModel = demo.NAME,
    /,
    *,
    methods: MethodOptions = MethodOptions(),
    quantity: Quantity = Quantity(),
    load: LoadOptions = LoadOptions(),
    config: Annotated[
        BenchConfig, without("model", "drafters", "baselines", "stop", "lookahead_parallel")
    ] = BenchConfig(),
    files: ResultFiles = ResultFiles(),
    parallel: ParallelOptions = ParallelOptions(),
) -> int:
    """Measure the speed of drafters and check their answers.

    The command compares answers and times with those of generate in transformers. All methods run
    in turn for each prompt, so that changes in the machine's speed affect them equally.

    Example: paceline bench smollm2 --drafters none,auto --limit 4 -n 32
    """
    config = changed(config, model=model)
    if quantity.serve:
        return _serve(config, methods, load, files)
    if load != LoadOptions():
        raise ConfigError(
            "bench: load options need --serve. Add --serve, or leave the load options out."
        )
    with joined_ranks(parallel, config.models.device) as ranks:
        has_draft = config.models.draft_model is not None or _embedded(config.models)
        config = replace(
            config,
            drafters=chosen_drafters(methods.drafters, config.models),
            baselines=_baselines(methods.baselines, has_draft, config.models.engine),
            lookahead_parallel=ranks.size if ranks else 0,
        )
        return 0 if run_and_report(config, files, ranks).complete else INTERRUPTED


def _serve(
    config: BenchConfig, methods: MethodOptions, load: LoadOptions, files: ResultFiles
) -> int:
    """Run the load benchmark, print its table, and write the requested files."""
    from paceline.bench.serving import markdown, print_table, run_serving, write_json, write_png

    supported = {
        "max_new_tokens",
        "max_nodes",
        "repeats",
        "drafters",
        *flat(ModelOptions()),
        *flat(PromptOptions()),
    }
    defaults = flat(BenchConfig())
    if others := [
        name
        for name, value in flat(config).items()
        if name not in supported and value != defaults[name]
    ]:
        names = ", ".join("--" + name.replace("_", "-") for name in others)
        raise ConfigError(f"bench: --serve does not take {names}. Leave these options out.")
    result = run_serving(
        ServingConfig(
            config.models,
            config.selection,
            chosen_drafters(methods.drafters, config.models),
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
    """Run a benchmark, print its table, and write the requested files."""
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


def chosen_drafters(requested: Sequence[str], models: ModelOptions) -> tuple[str, ...]:
    """Return the requested drafter specs; by default, all that the models support."""
    if requested:
        return tuple(split_specs(requested))
    embedded = _embedded(models)
    has_draft = models.draft_model is not None or embedded
    names = [name for name, entry in REGISTRY.items() if has_draft or not entry.needs_draft_model]
    if embedded:
        return tuple(with_store(name, demo.NAME) for name in names if name != _UNTRAINED)
    return tuple(
        name for name in names if not (REGISTRY[name].needs_trained or REGISTRY[name].needs_store)
    )


def _embedded(models: ModelOptions) -> bool:
    return models.model == demo.NAME and models.draft_model in (None, demo.NAME)


def _baselines(requested: Sequence[str], has_draft: bool, engine: EngineName) -> tuple[str, ...]:
    if engine != ENGINE and not requested:
        return ()
    names = (
        split_specs(requested)
        if requested
        else [name for name in BASELINES if has_draft or name != ASSISTANT]
    )
    return () if names == ["none"] else tuple(names)
