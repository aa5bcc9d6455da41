"""What the pictures have in common: pages, titles, colours, bars."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence as ListLike
from pathlib import Path
from typing import Any

from paceline.common.files import write_atomically
from paceline.errors import ConfigError
from paceline.report.tables import Table

# Okabe and Ito's palette: told apart under every common colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
OURS, THEIRS, INK = COLOURS[0], "#B0B0B0", "#222222"
_LEGEND_DEPTH = -0.45  # inches, to below the label of the axis
_THICKNESS = 0.76  # of a group of bars, of the distance to the next


def page(width: float, height: float) -> Any:
    """Return an empty matplotlib figure of that size in inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("picture: got no matplotlib; expected it installed. Run: pip install 'paceline[bench]'.") from error
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: str | Path, setting: ListLike[str], columns: int, size: float = 9) -> None:
    """Write above everything what ran where, and the page as a PNG file.

    Args:
        setting: pieces of text, between which lines of at most `columns` characters end.
    Raises:
        ConfigError: the file cannot be written.
    """
    text = "; ".join(piece.replace(" ", "\N{NO-BREAK SPACE}") for piece in setting)
    lines = textwrap.wrap(text, columns, break_long_words=False)
    figure.suptitle("\n".join(lines), fontsize=size, color=INK, x=0.01, ha="left")
    picture = io.BytesIO()
    figure.canvas.print_png(picture)  # savefig draws everything twice
    write_atomically(path, picture.getvalue())


def label(axes: Any, title: str, below: str, beside: str, grid: str, legend: int = 0) -> None:
    """Write title and axis labels, in one style.

    Args:
        grid: "x", "y" or "both". legend: columns of a legend below the axes; 0 = none.
    """
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(below, fontsize=9, color=INK)
    axes.set_ylabel(beside, fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        _legend_below(axes, legend)


def bars(
    axes: Any, names: ListLike[str], series: ListLike[tuple[str, str, ListLike[float | None]]], reference: float | None = None
) -> None:
    """Draw groups of horizontal bars, one group per name, with a legend below.

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
    _legend_below(axes, len(series))


def compared(axes: Any, table: Table, mine: str, theirs: str, setting: str) -> None:
    """Draw two columns of a table as bars, ratios measured here beside the paper's own, which are of that `setting`."""
    series = [("here", OURS, table.column(mine)), (f"the paper ({setting})", THEIRS, table.column(theirs))]
    bars(axes, table.column(0), series, 1.0)


def line(
    axes: Any, places: ListLike[float], values: ListLike[float | None], name: str, color: str, marker: str = "", style: str = "-"
) -> None:
    """Draw a line with marks through the values that are known; None = not known."""
    known = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), linestyle=style, color=color, marker=marker or None, markersize=6,
                  markeredgecolor="white", linewidth=1.4, label=name)  # fmt: skip


def reference_line(axes: Any) -> None:
    """Draw the dotted line of plain decoding, a ratio of 1."""
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":", zorder=0.5)


def _legend_below(axes: Any, columns: int) -> None:
    """Draw a legend under the label of the axis, where it hides nothing; none where nothing was drawn."""
    if not axes.get_legend_handles_labels()[0]:
        return
    from matplotlib.transforms import ScaledTranslation  # whoever has axes has matplotlib

    below = axes.transAxes + ScaledTranslation(0, _LEGEND_DEPTH, axes.get_figure(root=True).dpi_scale_trans)
    axes.legend(
        frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, 0.0), bbox_transform=below, ncols=columns,
        labelcolor=INK,
    )  # fmt: skip
