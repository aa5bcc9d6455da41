"""Predict the forward passes of part graph from a card's peak rates, without a GPU."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_parts.graph import REQUESTS, case_name
from gpu_parts.models import LLAMA_8B
from gpu_parts.settings import FULL
from papers.sssd.roofline import Matmul, Peak, Shapes

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
    """Return one line per forward pass, with the measured time if there is one.

    Args:
        name: Key in `CARDS`.
        results: File with the results of part graph; it need not exist.
    Raises:
        SystemExit: The card is unknown.
    """
    if name not in CARDS:
        raise SystemExit(f"There is no card {name!r}. Cards: {', '.join(CARDS)}.")
    rows = json.loads(results.read_text("utf-8"))["rows"] if results.is_file() else {}
    lines = [f"Shapes of Llama-3.1-8B on {CARDS[name].title}: predicted ms; measured ms"]
    for case, predicted_ms in predicted_times(name).items():
        measured_ms = rows.get(case, {}).get("graph_ms")
        measured = "-" if measured_ms is None else f"{measured_ms:.2f}"
        lines.append(f"{case}: {predicted_ms:.2f}; {measured}")
    return lines


def predicted_times(name: str) -> dict[str, float]:
    """Return a lower bound for the milliseconds of each forward pass of part graph.

    The bound covers matrix products and attention. It leaves out norms, masks, kernel launches and
    the difference between peak rates and rates that kernels reach.

    Args:
        name: Key in `CARDS`.
    """
    shapes, peak = _shapes(), CARDS[name].peak
    times = {}
    for context, requests in itertools.product(FULL.contexts, REQUESTS):
        for rows in sorted(FULL.graph_rows):
            seconds = sum(shapes.seconds(requests, rows, context, peak))
            times[case_name(context, requests, rows)] = 1e3 * seconds
    return times


def _shapes() -> Shapes:
    """Return the shapes of the model of parts forward and graph."""
    config: dict[str, Any] = LLAMA_8B
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
        *(Matmul(name, inputs, outputs, FULL.layers) for name, inputs, outputs in sizes),
        Matmul("lm_head", hidden, config["vocab_size"], 1),
    )
    return Shapes(hidden, FULL.layers, heads, kv_heads, head_size, _BYTES, matmuls)
