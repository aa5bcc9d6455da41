"""Draw grouped bars and curves as SVG, for any background."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_COLOURS = ("#0f766e", "#5eaaa2", "#d97706", "#7c8aa0")
_WIDTH, _BAR, _GAP, _LEFT, _RIGHT = 720, 15, 12, 210, 60
_INK, _PAPER, _RULE = "#1f2937", "#ffffff", "#9ca3af"


def bars(
    title: str,
    series: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | None]]],
    unit: str = "x",
) -> str:
    """Return horizontal bars as SVG; a dashed line marks the value 1.

    Args:
        title: Title above the bars.
        series: Name of each bar of a row.
        rows: Label of each row, and its values; None leaves a bar out.
        unit: Unit after each value.
    """
    largest = max((value for _, values in rows for value in values if value), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / largest
    top = 62
    shapes, y = list[str](), top
    for label, values in rows:
        present = [(place, value) for place, value in enumerate(values) if value]
        height = _BAR * len(present)
        shapes.append(_text(_LEFT - 8, y + height / 2 + 4, label, "end"))
        for place, value in present:
            width = value * scale
            colour = _COLOURS[place % len(_COLOURS)]
            shapes.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}"'
                f' fill="{colour}"/>'
            )
            shapes.append(_text(_LEFT + width + 5, y + _BAR - 4, f"{value:.2f}{unit}", size=11))
            y += _BAR
        y += _GAP
    if unit == "x":
        at = _LEFT + scale
        shapes.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 6}" y2="{y - _GAP + 4}"'
            f' stroke="{_INK}" stroke-dasharray="4 3"/>'
        )
    return _svg(title, series, shapes, y)


def curves(
    title: str, across: str, ticks: Sequence[str], series: dict[str, Sequence[float]]
) -> str:
    """Return curves over equally spaced ticks as SVG.

    Args:
        title: Title above the curves.
        across: Label of the horizontal axis.
        ticks: Labels of its values.
        series: Values of each curve by its name.
    """
    top, bottom, left = 66, 300, 60
    values = [value for curve in series.values() for value in curve]
    low, high = min(values), max(values)
    step = (_WIDTH - left - 40) / max(1, len(ticks) - 1)
    scale = (bottom - top) / ((high - low) or 1)
    shapes = []
    for mark in range(5):
        value = low + (high - low) * mark / 4
        y = bottom - (value - low) * scale
        shapes.append(
            f'<line x1="{left}" x2="{_WIDTH - 40}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_RULE}"'
            ' stroke-width="0.5"/>'
        )
        shapes.append(_text(left - 6, y + 4, f"{value:.2f}", "end", 11))
    shapes += [
        _text(left + step * place, bottom + 18, tick, "middle", 11)
        for place, tick in enumerate(ticks)
    ]
    shapes.append(_text(left + step * (len(ticks) - 1) / 2, bottom + 38, across, "middle"))
    for place, curve in enumerate(series.values()):
        points = " ".join(
            f"{left + step * at:.1f},{bottom - (value - low) * scale:.1f}"
            for at, value in enumerate(curve)
        )
        colour = _COLOURS[place % len(_COLOURS)]
        shapes.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
    return _svg(title, list(series), shapes, bottom + 44)


def _svg(title: str, series: Sequence[str], shapes: Sequence[str], height: float) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}"'
        f' font-family="system-ui, sans-serif" role="img" aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{height:.0f}" rx="8" fill="{_PAPER}"/>',
        _text(16, 24, title, size=15, weight="600"),
    ]
    x = 16.0
    for place, name in enumerate(series):
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(f'<rect x="{x:.0f}" y="36" width="11" height="11" fill="{colour}"/>')
        parts.append(_text(x + 16, 46, name))
        x += 34 + 7.2 * len(name)
    return "\n".join([*parts, *shapes, "</svg>", ""])


def _text(
    x: float, y: float, text: str, anchor: str = "start", size: int = 12, weight: str = "400"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}"'
        f' text-anchor="{anchor}" fill="{_INK}">{escape(text)}</text>'
    )
