"""Tokens per forward by the number of draft nodes, as they were measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from paceline.common.files import parse_json
from paceline.common.text_files import read_text
from paceline.errors import ConfigError, did_you_mean

_SHIPPED = Path(__file__).with_name("acceptance.json")
SHIPPED = ("chat", "maths", "code")
_REPLAY = "paceline replay"  # kind of the documents of `paceline replay --json`


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Attributes:
    source: what was measured.
    nodes, tokens: ascending numbers of draft nodes, the first 0, and tokens per forward with them, never falling, from 1.
    """

    source: str
    nodes: tuple[int, ...]
    tokens: tuple[float, ...]

    @property
    def most(self) -> int:
        """The largest tree that was measured."""
        return self.nodes[-1]

    def of(self, nodes: int) -> float:
        """Return tokens per forward with up to `most` nodes; between measured numbers it is a line."""
        return float(np.interp(nodes, self.nodes, self.tokens))


def read_acceptance(name: str) -> Acceptance:
    """Return a measured curve.

    Args:
        name: one of `SHIPPED`, or a JSON file: of `paceline replay --json` with one drafter, or {"nodes": tokens, ...}.
    Raises:
        ConfigError: no such file, or another content.
    """
    if name in SHIPPED:
        found = json.loads(_SHIPPED.read_text(encoding="utf-8"))[name]
        return _curve(name, found["tokens_per_forward"], f"{name}: {found['source']}")
    try:
        document = parse_json(read_text(name))
    except FileNotFoundError as error:
        raise ConfigError(f"plan: tokens_per_forward: got {name!r}, which is no file.{did_you_mean(name, SHIPPED)}") from error
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
        known = sorted((int(nodes), float(tokens)) for nodes, tokens in rates.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong(name, str(error)) from error
    known = [(0, 1.0), *(pair for pair in known if pair[0])]
    if len(known) < 2 or known[1][0] < 0:
        raise _wrong(name, "no number of nodes above 0")
    for nodes, tokens in known:
        if not 1 <= tokens <= 1 + nodes:
            raise _wrong(name, f"{tokens} tokens per forward with {nodes} nodes")
    rising = accumulate((tokens for _, tokens in known), max)
    return Acceptance(source, tuple(nodes for nodes, _ in known), tuple(rising))


def _wrong(name: str, found: str) -> ConfigError:
    return ConfigError(
        f"plan: tokens_per_forward {name!r}: got {found}; expected a result of `paceline replay --json` with one drafter, or"
        ' {"8": 1.8, "16": 2.1}: from 1 to 1 + nodes tokens per forward by the number of nodes. Correct it.'
    )
