#!/usr/bin/env python3
"""Draw lookahead's draft tree for W=5 N=4 G=2 with the drafter's own code.

The script writes text and a picture into docs/methods/lookahead.md.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from paceline.core.tree import DraftTree, node_depths
from paceline.core.tree_builder import TreeBuilder
from paceline.drafters.lookahead.window import LookaheadWindow

WIDTH, NGRAM, GUESSES = 5, 4, 2
DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- drawn by scripts/draw_window.py -->\n", "<!-- end of drawing -->\n"
_COLOURS = {
    "level 0": "#c6dbef",
    "level 1": "#9ecae1",
    "level 2": "#6baed6",
    "guess 1": "#fdd0a2",
    "guess 2": "#fdae6b",
}


def drawn_tree() -> tuple[DraftTree, list[str], list[str]]:
    """Return the tree, and the label and row of each node.

    All tokens differ, so the tree merges no nodes.
    """
    sizes = [WIDTH - 1, *[WIDTH] * (NGRAM - 2)]
    labels = [
        f"{'abd'[level]}{column + (level == 0)}"
        for level, size in enumerate(sizes)
        for column in range(size)
    ]
    rows = [f"level {level}" for level, size in enumerate(sizes) for _ in range(size)]
    levels = [
        [place for place, row in enumerate(rows) if row == f"level {level}"]
        for level in range(NGRAM - 1)
    ]
    builder = TreeBuilder(len(labels) + GUESSES * (NGRAM - 1))
    LookaheadWindow(levels, NGRAM).add_to_tree(builder.add)
    for guess in range(GUESSES):
        builder.add_path([len(builder) + place for place in range(NGRAM - 1)])
        labels += [f"{'gh'[guess]}{place + 1}" for place in range(NGRAM - 1)]
        rows += [f"guess {guess + 1}"] * (NGRAM - 1)
    tree = builder.build()
    return (
        tree,
        [labels[token] for token in tree.token_ids],
        [rows[token] for token in tree.token_ids],
    )


def drawing() -> str:
    """Return two blocks of text: every node at its position, and the nodes that it sees."""
    tree, labels, rows = drawn_tree()
    depths = node_depths(tree.parents).tolist()
    lines = [
        "position  " + "".join(f"{'p' if not at else f'+{at}':5}" for at in range(max(depths) + 1))
    ]
    for name in ["root", *dict.fromkeys(rows)]:
        cells = {
            depth: label
            for depth, label, row in zip(depths, labels, rows, strict=True)
            if row == name
        } or {0: "c"}
        lines.append(
            f"{name:10}" + "".join(f"{cells.get(at, ''):5}" for at in range(max(depths) + 1))
        )
    return "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"


def picture(path: Path) -> None:
    """Return the same tree as a picture with edges."""
    tree, labels, rows = drawn_tree()
    names = ["root", *dict.fromkeys(rows)]
    places = [(0.0, 0.0)]
    places += [
        (float(x), -float(names.index(row)))
        for x, row in zip(node_depths(tree.parents), rows, strict=True)
    ]
    with rc_context({"font.size": 10, "svg.hashsalt": "window"}):
        figure = Figure(figsize=(8.5, 4.6), layout="constrained")
        axes = figure.add_subplot()
        for node, parent in enumerate(tree.parents):
            (x, y), (from_x, from_y) = places[node + 1], places[parent + 1]
            axes.plot([from_x, x], [from_y, y], color="#999999", linewidth=1, zorder=1)
        for label, row, (x, y) in zip(["c", *labels], ["root", *rows], places, strict=True):
            colour = _COLOURS.get(row, "#dddddd")
            axes.text(
                x,
                y,
                label,
                ha="center",
                va="center",
                zorder=2,
                bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "#555555"},
            )
        deepest = int(max(x for x, _ in places))
        axes.set_xticks(range(deepest + 1), ["p", *(f"p+{at}" for at in range(1, deepest + 1))])
        axes.set_yticks([-float(place) for place in range(len(names))], names)
        axes.set_xlim(-0.5, deepest + 0.5)
        axes.set_ylim(-len(names) + 0.5, 0.5)
        axes.set_title(
            f"one step of lookahead, W={WIDTH} N={NGRAM} G={GUESSES}: c is the newest token, lines"
            " lead to parents"
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Update the page."""
    page = DOCS / "methods" / "lookahead.md"
    text = page.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(head + BEGIN + drawing() + END + tail, encoding="utf-8")
    picture(DOCS / "img" / "lookahead-window.svg")


if __name__ == "__main__":
    main()
