"""Plot a benchmark run: speed-ups with their spread, and tokens per forward pass."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path
from typing import Any

from paceline.bench.bench_settings import FRAME, ROW, TITLE_COLUMNS, WIDTH
from paceline.bench.report import setting_parts
from paceline.bench.result import BenchResult
from paceline.report.drawing import COLOURS, INK, OURS, label, page, save

_BASELINE, _POINT = "#767676", COLOURS[1]


def write_png(result: BenchResult, path: str | Path) -> None:
    """Plot a benchmark run, and write the plot to a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    names = list(result.methods)
    figure = page(WIDTH, FRAME + ROW * len(names))
    speed, forward = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    colours = [_BASELINE if name.startswith("transformers") else OURS for name in names]
    _draw_speed(speed, result, colours)
    _draw_forward(forward, result, colours)
    speed.set_yticks(range(len(names)), [_wrapped(name) for name in names])
    speed.set_ylim(len(names) - 0.5, -0.5)
    save(figure, path, setting_parts(result), TITLE_COLUMNS, 10)


def _draw_speed(axes: Any, result: BenchResult, colours: list[str]) -> None:
    values = [figures.speedup or 0.0 for figures in result.figures()]
    jitter = random.Random(0)
    spread = [result.unit_speedups(name) for name in result.methods]
    farthest = max([1.0, *values, *(ratio for ratios in spread for ratio in ratios)])
    for index, (name, ratios) in enumerate(zip(result.methods, spread, strict=True)):
        if name != result.baseline:
            heights = [index + jitter.uniform(-0.2, 0.2) for _ in ratios]
            axes.scatter(
                ratios, heights, s=22, color=_POINT, edgecolors="white", linewidths=0.7, zorder=3
            )
    points = "one point per prompt" if result.config.batch == 1 else "one point per batch"
    inside = [value > 0.12 * farthest for value in values]
    _draw_bars(axes, values, [f"{value:.2f}" for value in values], inside, colours, farthest)
    label(axes, "", f"speed-up over {result.baseline} ({points})", "", "x")


def _draw_forward(axes: Any, result: BenchResult, colours: list[str]) -> None:
    known = [figures.tokens_per_forward for figures in result.figures()]
    values, texts = (
        [value or 0.0 for value in known],
        ["not counted" if value is None else f"{value:.2f}" for value in known],
    )
    _draw_bars(
        axes, values, texts, [value is not None for value in known], colours, max([1.0, *values])
    )
    label(axes, "", "tokens per target forward", "", "x")


def _draw_bars(
    axes: Any,
    values: list[float],
    texts: list[str],
    inside: list[bool],
    colours: list[str],
    farthest: float,
) -> None:
    """Draw bars with labels: white inside a bar, dark to the right of a bar."""
    axes.barh(range(len(values)), values, color=colours, height=0.62)
    for index, (value, text, within) in enumerate(zip(values, texts, inside, strict=True)):
        start, colour, weight = (
            (0.0, "white", "bold") if within else (value, INK, "bold" if value else "normal")
        )
        axes.annotate(
            text,
            (start, index),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            color=colour,
            fontweight=weight,
            zorder=4,
        )
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, farthest * 1.05)
    axes.spines["left"].set_visible(False)


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(name.replace(",", ", "), 30)).replace(", ", ",")
