"""Tables of the GPU page, from the results of `scripts/gpu_day.py` in docs/results."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from benchmark_data import all_names, load

_PREFIX = "gpu-"
_NOTHING = "No GPU has been measured yet."
_KERNELS = ("direct flash", "direct efficient", "flash context and tree")
Rows = dict[str, dict[str, Any]]


def cards() -> str:
    """Return the measured cards with their versions."""
    lines = ["| card | driver | torch | CUDA | transformers | date |", "|---|---|---|---|---|---|"]
    for name in _results():
        card, versions = _row(name, "env", "card"), _row(name, "env", "versions")
        driver = next((str(card[key]) for key in card if key.startswith("driver")), "")
        cells = (
            card.get("name", name),
            driver.partition(",")[0],
            versions.get("torch"),
            card.get("cuda"),
            versions.get("transformers"),
            str(versions.get("date"))[:10],
        )
        lines.append(_line(cells))
    return "\n".join(lines) if len(lines) > 2 else _NOTHING


def speed() -> str:
    """Return the speed of whole answers, by batch and drafter."""
    return _per_card(_speed_of)


def exactness() -> str:
    """Return how many answers equal plain ones, by data type and options."""
    return _per_card(_exactness_of)


def forward() -> str:
    """Return the time of forward passes, by context and rows."""
    return _per_card(_forward_of)


def graph() -> str:
    """Return the time of forward passes as CUDA graphs, by context and rows."""
    return _per_card(_graph_of)


def prediction() -> str:
    """Return predicted times of forward passes beside the times measured on an H100."""
    from gpu_parts.prediction import predicted_times  # loads torch

    measured = _rows("gpu-h100", "graph")
    h100, rtx4090 = predicted_times("h100"), predicted_times("rtx4090")
    lines = [
        "| forward pass | H100, predicted ms | H100, measured ms | RTX 4090, predicted ms |",
        f"|---|{'---:|' * 3}",
    ]
    for key, ms in h100.items():
        cells = (ms, measured.get(key, {}).get("graph_ms"), rtx4090[key])
        lines.append(_line((_singular(key), *map(_number, cells))))
    return "\n".join(lines)


def speed_prediction() -> str:
    """Return predicted speeds of whole answers with the speeds measured on an H100."""
    from gpu_parts.prediction import predicted_speeds  # loads torch

    measured = _rows("gpu-h100", "end_to_end")
    h100, rtx4090 = predicted_speeds("h100"), predicted_speeds("rtx4090")
    lines = [
        "| batch size | method | H100, predicted | H100, measured | RTX 4090, predicted |",
        f"|---:|---|{'---:|' * 3}",
    ]
    for key, speed in h100.items():
        batch, name = key.removeprefix("batch ").split(", ")
        method = "plain decoding" if name == "none" else f"`{name}`"
        cells = (speed, measured.get(key, {}).get("tokens_per_s"), rtx4090[key])
        lines.append(_line((batch, method, *(_whole(cell) for cell in cells))))
    return "\n".join(lines)


def attention() -> str:
    """Return the time of attention kernels, by mask and columns."""
    return _per_card(_attention_of)


def _results() -> list[str]:
    return [name for name in all_names() if name.startswith(_PREFIX)]


def _rows(name: str, part: str) -> Rows:
    """Return the measurements of a part that have values."""
    rows: Rows = load(name).get("parts", {}).get(part, {}).get("rows", {})
    return {key: values for key, values in rows.items() if "error" not in values}


def _row(name: str, part: str, key: str) -> dict[str, Any]:
    return _rows(name, part).get(key, {})


def _per_card(table: Callable[[str], str]) -> str:
    """Return a table for each card that has one, under its name."""
    tables = {name: table(name) for name in _results()}
    found = [
        f"**{_row(name, 'env', 'card').get('name', name)}**\n\n{text}"
        for name, text in tables.items()
        if text
    ]
    return "\n\n".join(found) or _NOTHING


def _speed_of(name: str) -> str:
    rows = _rows(name, "end_to_end")
    lines = [
        "| batch size | method | tokens per second | speed relative to transformers"
        " | speed relative to plain decoding | ms per step | tokens per forward pass"
        " | answers equal to plain decoding |",
        f"|---:|---|{'---:|' * 6}",
    ]
    for key, values in rows.items():
        batch, _, method = key.partition(", ")
        if not batch.startswith("batch "):
            continue
        name, comma, invariant = method.partition(", ")
        plain = rows.get(f"{batch}, none{comma}{invariant}", {}).get("tokens_per_s")
        outside = method.startswith("transformers")
        label = ("plain decoding" if name == "none" else f"`{name}`") + comma + invariant
        cells = (
            batch.removeprefix("batch "),
            method if outside else label,
            f"{values['tokens_per_s']:,.0f}",
            _times(values.get("x_transformers")),
            _times(values["tokens_per_s"] / plain if plain else None),
            f"{values['ms_per_step']:.1f}",
            _number(values.get("tokens_per_forward")),
            values.get("equal") or "-",
        )
        lines.append(_line(cells))
    if len(lines) == 2:
        return ""
    target = f"{rows['target']['model']} parameters" if "target" in rows else "unknown"
    return "\n".join([*lines, "", f"*Target: {target}; bfloat16, greedy.*"])


def _exactness_of(name: str) -> str:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    gaps: dict[tuple[str, str], float] = defaultdict(float)
    for key, values in _rows(name, "exact").items():
        dtype, what, *rest = key.split(", ")
        group = dtype, f"paceline, {what}" if rest else "`model.generate`, greedy"
        equal, compared = map(int, values["equal"].split("/"))
        sums[group][0] += equal
        sums[group][1] += compared
        gaps[group] = max(gaps[group], values.get("max_gap", 0.0))
    lines = [
        "| dtype | answers from | equal to plain decoding | largest logit gap |",
        "|---|---|---:|---:|",
    ]
    for (dtype, what), (equal, compared) in sums.items():
        gap = "-" if equal == compared else f"{gaps[dtype, what]:.2g}"
        lines.append(_line((dtype, what, f"{equal} of {compared}", gap)))
    return "\n".join(lines) if sums else ""


def _forward_of(name: str) -> str:
    lines = [
        "| forward pass | ms | ms, growing context | host ms |",
        "|---|---:|---:|---:|",
    ]
    for key, values in _rows(name, "forward").items():
        times = (_number(values.get(what)) for what in ("ms", "growing_ms", "host_ms"))
        cells = (_singular(key), *times)
        lines.append(_line(cells))
    return "\n".join(lines) if len(lines) > 2 else ""


def _graph_of(name: str) -> str:
    lines = [
        "| forward pass | graph: ms | graph: host ms | no graph: ms | no graph: host ms"
        " | capture, ms | bit-identical |",
        f"|---|{'---:|' * 5}---|",
    ]
    times = ("graph_ms", "graph_host_ms", "launched_ms", "launched_host_ms", "capture_ms")
    for key, values in _rows(name, "graph").items():
        cells = (_singular(key), *(_number(values[what]) for what in times))
        lines.append(_line((*cells, "yes" if values["same_bits"] else "no")))
    return "\n".join(lines) if len(lines) > 2 else ""


def _attention_of(name: str) -> str:
    lines = [
        "| attention call | SDPA's kernel | known length | new length | new length, no cuDNN"
        " | fastest direct call | GPU time of that call |",
        f"|---|---|{'---:|' * 3}---|---:|",
    ]
    for key, values in _rows(name, "attention").items():
        default, without = values.get("default", {}), values.get("without cudnn", {})
        timed = {
            kernel: values[kernel]["device_us"]
            for kernel in _KERNELS
            if values.get(kernel, {}).get("device_us") is not None
        }
        best = min(timed, key=lambda kernel: timed[kernel], default=None)
        cells = (
            _singular(key),
            values["default choice"],
            _number(default.get("us")),
            _number(default.get("new_us")),
            _number(without.get("new_us")),
            best or "-",
            _number(None if best is None else timed[best]),
        )
        lines.append(_line(cells))
    return "\n".join([*lines, "", "*Times in microseconds per layer.*"]) if len(lines) > 2 else ""


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join('-' if cell is None else str(cell) for cell in cells)} |"


def _singular(key: str) -> str:
    """Return a measurement's name for a table, in which a noun after 1 is singular."""
    name = key.replace(" columns", " query tokens")
    return re.sub(r"\b1 (row|request|query token)s\b", r"1 \1", name)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
