"""Draw plots in a common style: figures, titles, bars, lines and legends."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, install_command
from paceline.report.report_settings import BAR_SHARE, LEGEND_DEPTH
from paceline.report.tables import Table
from paceline.util.files import write_atomically

# Palette of Okabe and Ito, which people with any common colour blindness can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
OURS, THEIRS, INK = COLOURS[0], "#B0B0B0", "#222222"


def page(width: float, height: float) -> Any:
    """Create an empty matplotlib figure.

    Args:
        width: Width in inches.
        height: Height in inches.
    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"picture: matplotlib is not installed. Run: {install_command('bench')}."
        ) from error
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(
    figure: Any, path: str | Path, setting: Sequence[str], columns: int, size: float = 9
) -> None:
    """Write a measurement's setup above the plots, and save the figure as PNG.

    Args:
        figure: The matplotlib figure.
        path: File to write.
        setting: Setup of the measurement, as a list of phrases. Lines break only between phrases.
        columns: Maximum number of characters per line of the setup.
        size: Font size of the setup in points.
    Raises:
        ConfigError: The file cannot be written.
    """
    text = "; ".join(phrase.replace(" ", "\N{NO-BREAK SPACE}") for phrase in setting)
    lines = textwrap.wrap(text, columns, break_long_words=False)
    figure.suptitle("\n".join(lines), fontsize=size, color=INK, x=0.01, ha="left")
    picture = io.BytesIO()
    figure.canvas.print_png(picture)  # savefig would draw everything twice
    write_atomically(path, picture.getvalue())


def label(axes: Any, title: str, x_label: str, y_label: str, grid: str, legend: int = 0) -> None:
    """Add a title, axis labels, grid lines and a legend to a plot.

    Args:
        axes: matplotlib axes.
        title: Title above the plot.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        grid: Axis whose values have grid lines: "x", "y" or "both".
        legend: Number of columns in the legend below the plot. 0 draws no legend.
    """
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        _legend_below(axes, legend)


def bars(
    axes: Any,
    names: Sequence[str],
    series: Sequence[tuple[str, str, Sequence[float | None]]],
    reference: float | None = None,
) -> None:
    """Draw groups of horizontal bars, one group per name, with a legend below.

    Args:
        axes: matplotlib axes.
        names: Name of each group.
        series: For each series, its label, its colour, and one value per group. A value of None
            appears as "-".
        reference: Value at which to draw a dotted line. None draws no line.
    """
    height = BAR_SHARE / len(series)
    for number, (title, colour, values) in enumerate(series):
        positions = [
            position + height * (number - (len(series) - 1) / 2) for position in range(len(names))
        ]
        axes.barh(
            positions, [value or 0.0 for value in values], color=colour, height=height, label=title
        )
        for position, value in zip(positions, values, strict=True):
            text = "-" if value is None else f"{value:.2f}"
            axes.annotate(
                text,
                (value or 0.0, position),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=INK,
            )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    if reference is not None:
        axes.axvline(reference, color=INK, linewidth=0.8, linestyle=":", zorder=0.5)
    longest = max(
        [reference or 0.0, *(value or 0.0 for _, _, values in series for value in values)]
    )
    axes.set_xlim(0, 1.12 * longest or 1.0)
    _legend_below(axes, len(series))


def compared(axes: Any, table: Table, measured: str, published: str, setting: str) -> None:
    """Draw measured speed-ups, and the speed-ups that a paper reports, as bars.

    Args:
        axes: matplotlib axes.
        table: Table with a row per configuration. The first column contains the configuration's
            name.
        measured: Heading of the column with the measured speed-ups.
        published: Heading of the column with the paper's speed-ups.
        setting: Setup of the paper's measurements, for the legend.
    """
    series = [
        ("here", OURS, table.column(measured)),
        (f"the paper ({setting})", THEIRS, table.column(published)),
    ]
    bars(axes, table.column(0), series, 1.0)


def line(
    axes: Any,
    positions: Sequence[float],
    values: Sequence[float | None],
    name: str,
    color: str,
    marker: str = "",
    style: str = "-",
) -> None:
    """Draw a line with markers through all values that are not None.

    Args:
        axes: matplotlib axes.
        positions: Horizontal positions of the values.
        values: Vertical positions. The line skips values of None.
        name: Label in the legend.
        color: Colour of the line and markers.
        marker: matplotlib marker, such as "o". An empty string draws no markers.
        style: matplotlib line style, such as "-" or "--".
    """
    known = [
        (position, value)
        for position, value in zip(positions, values, strict=True)
        if value is not None
    ]
    if known:
        axes.plot(
            *zip(*known, strict=True),
            linestyle=style,
            color=color,
            marker=marker or None,
            markersize=6,
            markeredgecolor="white",
            linewidth=1.4,
            label=name,
        )


def reference_line(axes: Any) -> None:
    """Draw a dotted horizontal line at 1, the value of plain decoding."""
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":", zorder=0.5)


def marked_line(axes: Any, position: float, text: str) -> None:
    """Draw a vertical line at `position`, and write `text` at the top of the line."""
    axes.axvline(position, color=THEIRS, linewidth=1)
    axes.annotate(
        text,
        (position, 0.98),
        (3, 0),
        xycoords=("data", "axes fraction"),
        va="top",
        textcoords="offset points",
        fontsize=8,
        color=INK,
    )


def _legend_below(axes: Any, columns: int) -> None:
    """Draw a legend below the axis label, if any series has a label."""
    if not axes.get_legend_handles_labels()[0]:
        return
    from matplotlib.transforms import ScaledTranslation  # a caller with axes has matplotlib

    below = axes.transAxes + ScaledTranslation(
        0, LEGEND_DEPTH, axes.get_figure(root=True).dpi_scale_trans
    )
    axes.legend(
        frameon=False,
        fontsize=8,
        loc="upper center",
        bbox_to_anchor=(0.4, 0.0),
        bbox_transform=below,
        ncols=columns,
        labelcolor=INK,
    )
