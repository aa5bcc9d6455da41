"""Predict the forward passes of part graph from a card's peak rates, without a GPU."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from gpu_parts.graph import REQUESTS, case_name
from gpu_parts.models import LLAMA_8B
from gpu_parts.settings import FULL
from paceline.plan.config import ModelCard, read_card
from paceline.plan.hardware import find_hardware
from paceline.plan.planning import roofline_costs


def predict(name: str, measured: Path) -> list[str]:
    """Return one line per forward pass, with the measured time if there is one.

    The time is a lower bound: norms, masks and kernel launches are not included.

    Args:
        name: Card, as in `paceline plan --hardware`.
        measured: File of the results of part graph; it need not exist.
    Raises:
        ConfigError: The card is unknown.
    """
    card, hardware = _card(), find_hardware(name)
    peak = hardware.peak(card.dtype, 1)
    known = _measured(measured)
    lines = [f"Shapes of Llama-3.1-8B on {hardware.title}: predicted ms; measured ms"]
    for context, requests in itertools.product(FULL.contexts, REQUESTS):
        costs = roofline_costs(card, context, peak)
        for rows in sorted(FULL.graph_rows):
            case = case_name(context, requests, rows)
            ms = known.get(case, {}).get("graph_ms")
            seen = "-" if ms is None else f"{ms:.2f}"
            lines.append(f"{case}: {1e3 * costs(requests, rows).seconds:.2f}; {seen}")
    return lines


def _card() -> ModelCard:
    """Return the dimensions of the model of parts forward and graph."""
    config = {
        **LLAMA_8B,
        "model_type": "llama",
        "num_hidden_layers": FULL.layers,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "llama-8b"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        return read_card(str(path))


def _measured(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    rows: dict[str, Any] = json.loads(path.read_text("utf-8"))["rows"]
    return rows
