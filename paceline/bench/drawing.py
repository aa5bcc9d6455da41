"""What the pictures have in common: pages, titles, colours, bars."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError

# Okabe and Ito's palette: told apart under every common colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
OURS, THEIRS, INK = COLOURS[0], "#B0B0B0", "#222222"
_LEGEND_DEPTH = -0.45  # inches, to below the label of the axis
_THICKNESS = 0.76  # of a group of bars, of the distance to the next


def page(width: float, height: float) -> Any:
    """An empty matplotlib figure of that size in inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("no picture without matplotlib; install it with: pip install 'paceline[bench]'.") from error
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: str | Path) -> None:
    """Write a page as a PNG file.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


def headline(figure: Any, pieces: Seq[str], columns: int, size: float) -> None:
    """What ran where, above everything; lines of at most `columns` characters end between pieces."""
    text = "; ".join(piece.replace(" ", "\N{NO-BREAK SPACE}") for piece in pieces)
    lines = textwrap.wrap(text, columns, break_long_words=False)
    figure.suptitle("\n".join(lines), fontsize=size, color=INK, x=0.01, ha="left")


def label(axes: Any, title: str, below: str, beside: str, grid: str) -> None:
    """Title and axis labels, in one style; `grid` is "x", "y" or "both"."""
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(below, fontsize=9, color=INK)
    axes.set_ylabel(beside, fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def bars(axes: Any, names: Seq[str], series: Seq[tuple[str, str, Seq[float | None]]], reference: float | None = None) -> None:
    """Groups of horizontal bars, one group per name, with a legend below.

    Args:
        series: label, colour and one value per name; None is shown as "-".
        reference: where a dotted line stands; None = nowhere.
    """
    height = _THICKNESS / len(series)
    for number, (title, colour, values) in enumerate(series):
        places = [place + height * (number - (len(series) - 1) / 2) for place in range(len(names))]
        axes.barh(places, [one or 0.0 for one in values], color=colour, height=height, label=title)
        for place, one in zip(places, values, strict=True):
            text = "-" if one is None else f"{one:.2f}"
            axes.annotate(text, (one or 0.0, place), (3, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    if reference is not None:
        axes.axvline(reference, color=INK, linewidth=0.8, linestyle=":", zorder=0.5)
    longest = max([reference or 0.0, *(one or 0.0 for _, _, values in series for one in values)])
    axes.set_xlim(0, 1.12 * longest or 1.0)
    legend_below(axes, len(series))


def legend_below(axes: Any, columns: int) -> None:
    """A legend under the label of the axis, where it hides nothing."""
    from matplotlib.transforms import ScaledTranslation  # whoever has axes has matplotlib

    below = axes.transAxes + ScaledTranslation(0, _LEGEND_DEPTH, axes.get_figure(root=True).dpi_scale_trans)
    axes.legend(
        frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, 0.0), bbox_transform=below, ncols=columns,
        labelcolor=INK,
    )  # fmt: skip
