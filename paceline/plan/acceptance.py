"""Read the measured tokens per forward pass for each draft tree size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ConfigError, did_you_mean
from paceline.util.files import parse_json
from paceline.util.text_files import read_text

_SHIPPED = Path(__file__).with_name("acceptance.json")
SHIPPED = ("chat", "maths", "code")
_REPLAY = "paceline replay"  # document kind of `paceline replay --json`


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A measured curve: tokens per forward pass by number of draft nodes.

    Attributes:
        source: Description of the measurement.
        nodes: Numbers of draft nodes, in ascending order, starting with 0.
        tokens: Tokens per forward pass for each number of nodes, never decreasing, starting with
            1.
    """

    source: str
    nodes: tuple[int, ...]
    tokens: tuple[float, ...]

    @property
    def most(self) -> int:
        """Return the largest number of draft nodes in the measurement."""
        return self.nodes[-1]

    def of(self, nodes: int) -> float:
        """Return the tokens per forward pass for `nodes` draft nodes, interpolated."""
        return float(np.interp(nodes, self.nodes, self.tokens))


def read_acceptance(name: str) -> Acceptance:
    """Read a measured curve.

    Args:
        name: One of `SHIPPED`, or a JSON file. The file contains the output of `paceline replay
            --json` with one drafter, or {"nodes": tokens, ...}.
    Raises:
        ConfigError: The file does not exist, or it does not contain such a curve.
    """
    if name in SHIPPED:
        curve = json.loads(_SHIPPED.read_text(encoding="utf-8"))[name]
        return _curve(name, curve["tokens_per_forward"], f"{name}: {curve['source']}")
    try:
        document = parse_json(read_text(name))
    except FileNotFoundError as error:
        hint = did_you_mean(name, SHIPPED)
        raise ConfigError(f"plan: tokens_per_forward: {name!r} is not a file.{hint}") from error
    except (OSError, ValueError) as error:
        raise _wrong(name, str(error)) from error
    if isinstance(document, dict) and document.get("kind") == _REPLAY:
        return _of_replay(name, document.get("rows"))
    return _curve(name, document, name)


def _of_replay(name: str, rows: Any) -> Acceptance:
    try:
        drafters = sorted({row["drafter"] for row in rows})
        if len(drafters) != 1:
            raise _wrong(name, f"{len(drafters)} drafters ({'; '.join(drafters)})")
        counts: dict[int, list[int]] = {}
        for row in rows:
            sums = counts.setdefault(row["max_nodes"], [0, 0])
            sums[0] += row["tokens"]
            sums[1] += row["steps"]
        rates = {str(nodes): tokens / steps for nodes, (tokens, steps) in counts.items()}
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise _wrong(name, f"a replay without {error}") from error
    return _curve(name, rates, f"{name}: {drafters[0]}")


def _curve(name: str, rates: Any, source: str) -> Acceptance:
    try:
        points = sorted((int(nodes), float(tokens)) for nodes, tokens in rates.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong(name, str(error)) from error
    points = [(0, 1.0), *(pair for pair in points if pair[0])]
    if len(points) < 2 or points[1][0] < 0:
        raise _wrong(name, "no number of nodes above 0")
    for nodes, tokens in points:
        if not 1 <= tokens <= 1 + nodes:
            raise _wrong(name, f"{tokens} tokens per forward with {nodes} nodes")
    rising = accumulate((tokens for _, tokens in points), max)
    return Acceptance(source, tuple(nodes for nodes, _ in points), tuple(rising))


def _wrong(name: str, content: str) -> ConfigError:
    return ConfigError(
        f"plan: tokens_per_forward {name!r}: got {content}; expected a result of `paceline replay"
        ' --json` with one drafter, or {"8": 1.8, "16": 2.1}: from 1 to 1 + nodes tokens per'
        " forward by the number of nodes. Correct it."
    )
