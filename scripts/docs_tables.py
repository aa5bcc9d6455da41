"""Tables of documentation pages that come from the code and from several results at once.

`scripts/update_benchmarks.py` writes them between `<!-- table of NAME -->` and `<!-- end of table
-->`. NAME is `options-DRAFTER`, the options of a drafter; `speed-DRAFTER`, its measured speed;
`speed-all`, the speed of all drafters; or `invariance-speed`, what batch invariance costs.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

from paceline.drafters import REGISTRY

ROOT = Path(__file__).parent.parent
MAX_CELL_WORDS = 12

# Processors of runs with SmolLM2-135M-Instruct, batch 1, and of runs of its 1 B copy with a draft.
SINGLE = {
    "Xeon AMX": "smollm2-batch1-bf16-amx",
    "EPYC AVX512-BF16": "smollm2-batch1-bf16-dots",
    "EPYC AVX512-BF16 (2)": "smollm2-batch1-bf16-dots-two-cores",
    "EPYC AVX2": "smollm2-batch1-bf16-avx2",
}
WITH_DRAFT = {
    "Xeon AMX": "smollm2-draft-1b-bf16-amx",
    "EPYC AVX512-BF16": "smollm2-draft-1b-bf16-dots",
}
EXACT = {"AMD EPYC": "smollm2-equal-fp32"}
HEAD = {"EPYC AVX512-BF16": "smollm2-nodes-bf16-dots"}
INVARIANCE = {
    "Xeon AMX": "invariance-cost-amx",
    "EPYC AVX512-BF16": "invariance-cost-dots",
    "EPYC AVX2": "invariance-cost",
}
# Runs of drafters that the runs above do not have.
_RUNS = {
    **dict.fromkeys(("draft_model", "specdec_pp", "ouroboros"), WITH_DRAFT),
    **dict.fromkeys(("rest", "pia", "jacobi"), EXACT),
    "draft_head": HEAD,
}
_STORE = "datastore=store"
_SPELLED = {"rest": [f"rest:{_STORE}"], "sssd": ["sssd", f"sssd:{_STORE}"]}
_SPELLED["draft_head"] = [
    "auto:max_nodes=16,budget=false",
    "auto:max_nodes=16,budget=false,draft_head=false",
]
_SPELLED["auto"] = ["auto", f"auto:{_STORE}"]
_PADDED = "SmolLM2-135M-Instruct padded to the compute cost of a 1B model, with its draft model"
_TITLES = {
    id(SINGLE): "SmolLM2-135M-Instruct",
    id(EXACT): "SmolLM2-135M-Instruct",
    id(HEAD): "SmolLM2-135M-Instruct",
    id(WITH_DRAFT): _PADDED,
}


def generated(name: str, results: Path) -> str | None:
    """Return a table by its name, or None if the name is that of a result.

    Args:
        name: Name in the mark.
        results: Folder of the results.
    """
    kind, _, rest = name.partition("-")
    if kind == "options":
        return options_table(rest)
    if name == "speed-all":
        return overview_table(results)
    if name == "invariance-speed":
        return invariance_table(results)
    return speed_table(rest, results) if kind == "speed" else None


def options_table(drafter: str) -> str:
    """Return the options of a drafter with their defaults and the first words of their help."""
    options = REGISTRY[drafter].options()
    help_of = _attribute_help(options)
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(options):
        text = help_of[field.name]
        meaning = _meaning(text, field.name, field.default)
        lines.append(f"| `{field.name}` | {_default(field.default, text)} | {meaning} |")
    return "\n".join(lines)


def options_reference() -> str:
    """Return the options of every drafter with their complete help."""
    lines = []
    for drafter in REGISTRY:
        options = REGISTRY[drafter].options()
        help_of = _attribute_help(options)
        summary = REGISTRY[drafter].summary
        lines += [f"## {drafter}", "", f"{summary[0].upper()}{summary[1:]}.", ""]
        for field in dataclasses.fields(options):
            text = re.sub(r'"(\w+)"', r"`\1`", help_of[field.name])
            lines.append(f"- `{field.name}`: {text}")
        lines += [] if dataclasses.fields(options) else ["This drafter has no options."]
        lines.append("")
    return "\n".join(lines).rstrip()


def speed_table(drafter: str, results: Path) -> str:
    """Return the speed of a drafter over plain decoding, by processor."""
    runs = _RUNS.get(drafter, SINGLE)
    lines = [
        "| drafter | machine | tokens per forward pass | speed over plain decoding | answers |",
        "|---|---|---:|---:|---:|",
    ]
    for spec in _SPELLED.get(drafter, [drafter]):
        for processor, run in runs.items():
            methods = _methods(results / f"{run}.json")
            if spec in methods:
                method = methods[spec]
                lines.append(
                    f"| `{spec}` | {processor} | {method['tokens_per_forward']:.2f} |"
                    f" {_speed(method, methods)} | {method['answers']} |"
                )
    return "\n".join([*lines, "", _caption(runs, results)])


def overview_table(results: Path) -> str:
    """Return the speed of the drafters of both runs over plain decoding, by processor."""
    tables = []
    for runs in (SINGLE, WITH_DRAFT):
        methods = {name: _methods(results / f"{run}.json") for name, run in runs.items()}
        lines = [
            f"| drafter | {' | '.join(methods)} |",
            f"|---|{'---:|' * len(methods)}",
        ]
        for drafter in REGISTRY:
            speeds = [
                _speed(found[drafter], found) if drafter in found else "not measured"
                for found in methods.values()
            ]
            if any(drafter in found for found in methods.values()):
                lines.append(f"| `{drafter}` | {' | '.join(speeds)} |")
        tables.append("\n".join([*lines, "", _caption(runs, results)]))
    return "\n\n".join(tables)


def invariance_table(results: Path) -> str:
    """Return the speed with batch invariance over the speed without it, in bfloat16."""
    speeds: dict[tuple[str, str, str], dict[str, float]] = {}
    for processor, name in INVARIANCE.items():
        content = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for dtype, context, batch, drafts, _, _, speed in content["summary"]["rows"]:
            if dtype == "bfloat16":
                speeds.setdefault((context, batch, drafts), {})[processor] = speed
    lines = [
        f"| context | batch | draft tokens | {' | '.join(INVARIANCE)} |",
        f"|---:|---:|---:|{'---:|' * len(INVARIANCE)}",
    ]
    for (context, batch, drafts), found in speeds.items():
        cells = [f"{found[name]:.2f}x" if name in found else "not measured" for name in INVARIANCE]
        lines.append(f"| {int(context):,} | {batch} | {drafts} | {' | '.join(cells)} |")
    caption = (
        "*Speed with batch invariance relative to speed without it. SmolLM2-135M-Instruct, one"
        " thread.*"
    )
    return "\n".join([*lines, "", caption])


def _caption(runs: dict[str, str], results: Path) -> str:
    """Describe the runs of a table by what their files hold."""
    files = [
        json.loads((results / f"{run}.json").read_text(encoding="utf-8")) for run in runs.values()
    ]
    (dtype,) = {content["dtype"] for content in files}
    (batch,) = {content["config"]["batch"] for content in files}
    tokens = sorted({content["config"]["sampling"]["max_new_tokens"] for content in files})
    limit = f"{' or '.join(map(str, tokens))} new tokens"
    if len(tokens) > 1:
        limit += ", depending on the machine"
    return (
        f"*{_TITLES[id(runs)]}; {dtype}, greedy decoding, one thread, batch size {batch}; prompts"
        f" from HumanEval, GSM8K and Spec-Bench; up to {limit}. Each prompt was run once"
        f" with every drafter{_several_passes(runs, files)}.*"
    )


def _several_passes(runs: dict[str, str], files: list[dict[str, Any]]) -> str:
    """Return which machines passed over the prompts more than once."""
    several = {
        machine: content["config"]["repeats"]
        for machine, content in zip(runs, files, strict=True)
        if content["config"]["repeats"] > 1
    }
    return "".join(f", or {count} times on {machine}" for machine, count in several.items())


def _methods(path: Path) -> dict[str, dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        method["method"].replace("bench-output/", ""): method
        for method in content["summary"]["all"]
    }


def _speed(method: dict[str, Any], methods: dict[str, dict[str, Any]]) -> str:
    return f"{method['tokens_per_second'] / methods['none']['tokens_per_second']:.2f}x"


def _attribute_help(options: Any) -> dict[str, str]:
    """Return the help of each attribute in the docstring of an options class."""
    text = inspect.getdoc(options) or ""
    _, _, section = text.partition("Attributes:\n")
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z|^\S)", section, re.DOTALL | re.MULTILINE)
    return {name: " ".join(found.split()) for name, found in entries}


def _default(value: Any, text: str) -> str:
    """Return the default for a cell; the help explains defaults that depend on other options."""
    if value is not None:
        shown = str(value).lower() if isinstance(value, bool) else f"{value}"
        return f"`{shown}`"
    found = re.search(
        r"(?:By default|[Dd]efaults to|Default:?|default) ((?:[^.]|\.(?=\d))*)\.", text
    )
    if found is None or text.startswith(("Folder of a datastore", "File")):
        return "none"
    words = re.sub(r"\b(or|and|otherwise) to ", r"\1 ", re.sub(r'"(\w+)"', r"`\1`", found[1]))
    if len(words.split()) > MAX_CELL_WORDS:
        words = re.split(r"[;,]", words)[0]
    return words


def _meaning(text: str, name: str, default: Any) -> str:
    """Return the first sentence of the help without default, range and explanations.

    The choices of an option with a text as its default are listed.
    """
    first = re.split(r"(?<=[.])\s+(?=[A-Z`\"0-9])", text)[0].rstrip(".")
    short = re.split(r";|, default|: ", re.sub(r" \([^)]*\)", "", first))[0]
    choices = dict.fromkeys(re.findall(r'"(\w+)"', text)) if isinstance(default, str) else {}
    if choices:
        short += f": {', '.join(f'`{choice}`' for choice in choices)}"
    short = re.sub(r'"(\w+)"', r"`\1`", short)
    if len(short.split()) > MAX_CELL_WORDS:
        raise ValueError(
            f"the help of {name!r} begins with a sentence of {len(short.split())} words; expected"
            f" at most {MAX_CELL_WORDS}: {short}"
        )
    return short
