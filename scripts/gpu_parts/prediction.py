"""Predict forward passes and tokens per second from a card's peak rates, without a GPU."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gpu_parts.graph import REQUESTS, case_name
from gpu_parts.models import LLAMA_8B
from gpu_parts.settings import FULL
from paceline import demo
from paceline.bench.cost_scale import enlarged_config
from paceline.bench.settings import CostScale
from paceline.model.loading import load_model
from papers.sssd.roofline import Matmul, Peak, Shapes

STEPS = Path(__file__).parents[2] / "docs" / "results" / "step-overhead.json"
PREDICTED_DRAFTERS = ("none", "auto")
_BYTES = 2  # of a bfloat16 number


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """A card's peak rates for dense bfloat16 products with float32 sums."""

    title: str
    peak: Peak


# Source: NVIDIA's data sheets and architecture papers, for products of dense matrices.
CARDS = {
    "h100": GpuPeaks("NVIDIA H100 SXM", Peak(989.4e12, 3350e9)),
    "h200": GpuPeaks("NVIDIA H200 SXM", Peak(989.4e12, 4800e9)),
    "a100": GpuPeaks("NVIDIA A100 SXM 80 GB", Peak(312e12, 2039e9)),
    "l40s": GpuPeaks("NVIDIA L40S", Peak(362.05e12, 864e9)),
    "rtx4090": GpuPeaks("NVIDIA GeForce RTX 4090", Peak(165.2e12, 1008e9)),
    "rtx5090": GpuPeaks("NVIDIA GeForce RTX 5090", Peak(209.5e12, 1792e9)),
}


def predict(name: str, results: Path) -> list[str]:
    """Return a line per forward pass and per method, with the measured value if there is one.

    Args:
        name: Key in `CARDS`.
        results: Folder with the results of the parts; it may not exist.
    Raises:
        SystemExit: The card is unknown.
    """
    if name not in CARDS:
        raise SystemExit(f"There is no card {name!r}. Cards: {', '.join(CARDS)}.")
    title = CARDS[name].title
    lines = [f"Shapes of Llama-3.1-8B on {title}: predicted ms; measured ms"]
    lines += _compared(predicted_times(name), results / "graph.json", "graph_ms")
    lines.append(f"demo {FULL.scale} on {title}: predicted tokens/s; measured tokens/s")
    lines += _compared(predicted_speeds(name), results / "end_to_end.json", "tokens_per_s")
    return lines


def _compared(predicted: dict[str, float], path: Path, key: str) -> list[str]:
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.is_file() else {}
    lines = []
    for case, value in predicted.items():
        measured = rows.get(case, {}).get(key)
        lines.append(f"{case}: {value:.2f}; {'-' if measured is None else f'{measured:.2f}'}")
    return lines


def predicted_times(name: str) -> dict[str, float]:
    """Return a lower bound for the milliseconds of each forward pass of part graph.

    The bound covers matrix products and attention. It leaves out norms, masks, kernel launches and
    the difference between peak rates and rates that kernels reach.

    Args:
        name: Key in `CARDS`.
    """
    shapes, peak = _shapes(LLAMA_8B, FULL.layers), CARDS[name].peak
    times = {}
    for context, requests in itertools.product(FULL.contexts, REQUESTS):
        for rows in sorted(FULL.graph_rows):
            seconds = sum(shapes.seconds(requests, rows, context, peak))
            times[case_name(context, requests, rows)] = 1e3 * seconds
    return times


def predicted_speeds(name: str) -> dict[str, float]:
    """Return an upper bound for the tokens per second of methods of part end_to_end.

    A step takes the forward pass, bounded as in `predicted_times`, and the host time that
    `scripts/step_overhead.py` measured on a CPU, as were tokens per forward pass and rows. The
    bound leaves out prefill, the forward passes of the draft head, and batches with free slots.

    Args:
        name: Key in `CARDS`.
    """
    shapes, peak = _target_shapes(), CARDS[name].peak
    results = json.loads(STEPS.read_text("utf-8"))["runs"]["cpu"]["results"]
    steps = {(step["drafter"], step["batch"]): step for step in results}
    speeds = {}
    for batch, drafter in itertools.product(FULL.batches, PREDICTED_DRAFTERS):
        step = steps[drafter, batch]
        rows = math.ceil(step["rows"] / batch)
        seconds = sum(shapes.seconds(batch, rows, FULL.tokens, peak)) + step["overhead_ms"] / 1e3
        speeds[f"batch {batch}, {drafter}"] = batch * step["tokens"] / seconds
    return speeds


@cache
def _target_shapes() -> Shapes:
    """Return the shapes of the default target of part end_to_end."""
    scale = CostScale.parse(FULL.scale)
    model = load_model(demo.TARGET, torch.float32, torch.device("cpu"))
    config = enlarged_config(model, scale.width, scale.layers).to_dict()
    return _shapes(config, scale.layers)


def _shapes(config: dict[str, Any], layers: int) -> Shapes:
    """Return the shapes of a model of the Llama architecture."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head_size = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    sizes = (
        ("q_proj", hidden, heads * head_size),
        ("k_proj", hidden, kv_heads * head_size),
        ("v_proj", hidden, kv_heads * head_size),
        ("o_proj", heads * head_size, hidden),
        ("gate_proj", hidden, inner),
        ("up_proj", hidden, inner),
        ("down_proj", inner, hidden),
    )
    matmuls = (
        *(Matmul(name, inputs, outputs, layers) for name, inputs, outputs in sizes),
        Matmul("lm_head", hidden, config["vocab_size"], 1),
    )
    return Shapes(hidden, layers, heads, kv_heads, head_size, _BYTES, matmuls)
