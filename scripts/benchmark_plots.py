"""Draw the plots of the benchmark pages as SVG from docs/results."""

from __future__ import annotations

from collections.abc import Callable

import benchmark_paper_plots
from benchmark_data import BATCHES, DRAFTERS, MACHINES, load, machines_of, over
from benchmark_drawing import bars
from benchmark_serving import vllm_rows


def single_requests() -> str:
    """Draw every drafter on every machine, one request at a time."""
    suffixes = [name for name in MACHINES if name != "dots-two-cores"]
    return bars(
        "Single requests: speed over plain decoding",
        [MACHINES[suffix] for suffix in suffixes],
        [
            (method, [over(f"smollm2-batch1-bf16-{suffix}", method) for suffix in suffixes])
            for method in DRAFTERS
        ],
    )


def batches() -> str:
    """Draw `auto` by machine and batch size."""
    return bars(
        "auto in batches: speed over plain decoding",
        [f"batch {batch}" for batch in BATCHES],
        [
            (name, [over(f"smollm2-batch{batch}-bf16-{suffix}", "auto") for batch in BATCHES])
            for suffix, name in MACHINES.items()
        ],
    )


def texts() -> str:
    """Draw two drafters by kind of text."""
    name, methods = "smollm2-batch1-bf16-amx", ("auto", "prompt_lookup")
    return bars(
        f"Kinds of text: speed over plain decoding, {MACHINES['amx']}",
        methods,
        [
            (
                category.replace("_", " "),
                [over(name, method, category=category) for method in methods],
            )
            for category in load(name)["summary"]["categories"]
        ],
    )


def contexts() -> str:
    """Draw `auto` by the length of the prompt."""
    suffixes = machines_of("smollm2-contexts-bf16-{}")
    return bars(
        "Length of the prompt: speed of auto over plain decoding",
        list(suffixes.values()),
        [
            (
                f"{length} tokens",
                [
                    over(f"smollm2-contexts-bf16-{suffix}", "auto", category=f"context {length}")
                    for suffix in suffixes
                ],
            )
            for length in (200, 1000, 4000)
        ],
    )


def draft_models() -> str:
    """Draw the drafters that use a draft model."""
    suffixes = ("amx", "dots")
    methods = ("auto", "draft_model", "ouroboros", "specdec_pp", "auto:use_draft_model=false")
    return bars(
        "Draft models, target padded to 1 B: speed over plain decoding",
        [MACHINES[suffix] for suffix in suffixes],
        [
            (method, [over(f"smollm2-draft-1b-bf16-{suffix}", method) for suffix in suffixes])
            for method in methods
        ],
    )


def under_load() -> str:
    """Draw the throughput of a server with `auto` over that without."""
    names = {"amx": ("smollm2-serve-bf16-amx",), "avx2": ("smollm2-serve-bf16-avx2",)}

    def gain(suffix: str, users: int) -> float | None:
        for row in (row for name in names[suffix] for row in load(name)["summary"]):
            if row["drafter"] == "auto" and row["load"]["level"] == users:
                return float(row["speedup"])
        return None

    return bars(
        "A server under load: throughput of auto over plain decoding",
        [MACHINES[suffix] for suffix in names],
        [
            (f"{users} user{'s' if users > 1 else ''}", [gain(suffix, users) for suffix in names])
            for users in (1, 8, 32)
        ],
    )


def inside_vllm() -> str:
    """Draw accepted tokens per step and speed in vLLM, batch 16."""
    return bars(
        "Inside vLLM, batch 16: accepted tokens per step, and speed over no speculation",
        ["accepted per step", "speed"],
        [(row.method.replace("`", ""), [row.accepted, row.speed]) for row in vllm_rows("batch16")],
        unit="",
    )


PLOTS: dict[str, Callable[[], str]] = {
    "single-requests": single_requests,
    "batches": batches,
    "texts": texts,
    "contexts": contexts,
    "draft-models": draft_models,
    "under-load": under_load,
    "inside-vllm": inside_vllm,
    "paper-lookahead": benchmark_paper_plots.lookahead,
    "paper-ouroboros": benchmark_paper_plots.ouroboros,
    "paper-specdec-pp": benchmark_paper_plots.specdec,
    "paper-sssd": benchmark_paper_plots.sssd,
}
