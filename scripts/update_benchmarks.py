"""Write the pages and tables of figures from docs/results/*.json, so that every figure there was
measured.

One page per result, docs/benchmarks/NAME.md; and the tables of README.md and of the pages of
docs, between the marks `<!-- table of NAME -->` and `<!-- end of table -->`. The cost of batch
invariance, runs inside vLLM and disturbed cost curves have tables and no page.
The picture of a paper is the PNG file beside its JSON file.

python scripts/update_benchmarks.py
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.bench import markdown, read_json
from paceline.bench.inside_vllm import KIND as VLLM
from paceline.bench.inside_vllm import read_vllm, vllm_table
from paceline.bench.invariance_cost import KIND as COST
from paceline.bench.invariance_cost import cost_table, read_cost
from paceline.bench.report import KIND as BENCH
from paceline.bench.serving import report as serving
from paceline.report.documents import kind_of

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # `papers` is not installed
sys.path.insert(0, str(ROOT / "scripts"))
from docs_tables import generated  # noqa: E402

from papers import paper_markdown, read_paper_json  # noqa: E402

RESULTS = ROOT / "docs" / "results"
PAGES = ROOT / "docs" / "benchmarks"
DISTURBED = "disturbed-costs"  # of scripts/disturbed_costs.py
_MARKED = re.compile(r"(<!-- table of ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
# Where the runs had their files, and what a reader calls these (docs/benchmarks.md).
_FILES = {
    "../shared/data/prompts/": "prompts/",
    "../shared/models/target": "demo",
    "../shared/models/draft": "demo",
    "bench-output/": "",
}
# Drafter options that have been renamed since a result was written, by drafter.
_RENAMED = {
    "auto": {"nodes": "max_nodes", "draft": "use_draft_model", "foresight": "draft_head"},
    "token_recycling": {"nodes": "max_nodes"},
    "sssd": {"nodes": "max_nodes", "remember": "answer_cache_tokens"},
    "prompt_lookup": {"length": "max_draft_tokens"},
    "draft_model": {
        "length": "max_draft_tokens",
        "rule": "stop_rule",
        "stop_below": "stop_threshold",
    },
    "specdec_pp": {
        "newest": "count_undecided",
        "min": "min_draft_tokens",
        "seconds": "second_choices",
    },
    "lookahead": {"compat": "reference_mode"},
    "ouroboros": {"branches": "max_branches", "warm": "shared_pool"},
}
_SPEC = re.compile(rf"\b({'|'.join(_RENAMED)}):((?:[a-z_]+=[^\s,\"`]*,?)+)")
_OUTSIDE = {
    "transformers": "transformers",
    "transformers:prompt_lookup": "transformers, prompt lookup",
    "transformers:assistant": "transformers, assisted",
}


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    with TemporaryDirectory() as folder:
        for path in RESULTS.glob("*.json"):
            text = _SPEC.sub(_with_new_names, path.read_text(encoding="utf-8"))
            Path(folder, path.name).write_text(text, encoding="utf-8")
        for path in sorted(Path(folder).glob("*.json")):
            if kind_of(path) not in (COST.name, VLLM.name, DISTURBED):
                yield PAGES / f"{path.stem}.md", page(path)
        for file in _with_tables():
            text = file.read_text(encoding="utf-8")
            yield (
                file,
                _MARKED.sub(
                    lambda mark: f"{mark[1]}{_table_of(mark[2], Path(folder))}\n{mark[3]}", text
                ),
            )


def _with_tables() -> list[Path]:
    """Return the pages with marks; each may have several tables."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if _MARKED.search(page.read_text(encoding="utf-8"))]


def _table_of(name: str, results: Path) -> str:
    found = generated(name, results)
    return table(results / f"{name}.json") if found is None else found


def _with_new_names(spec: re.Match[str]) -> str:
    names = _RENAMED[spec[1]]
    options = re.sub(
        r"(^|,)(\w+)=", lambda option: f"{option[1]}{names.get(option[2], option[2])}=", spec[2]
    )
    return f"{spec[1]}:{options}"


def page(path: Path) -> str:
    """The section of a result, as a page of its own."""
    kind = kind_of(path)
    paper = kind not in (BENCH.name, serving.KIND.name)
    picture = f"../results/{path.stem}.png"
    drawn = picture if (PAGES / picture).exists() else None
    if paper:
        text = paper_markdown(read_paper_json(path), drawn)
    elif kind == serving.KIND.name:
        text = serving.markdown(serving.read_json(path), drawn)
    else:
        text = markdown(read_json(path))
    title = "# " if paper else f"# {path.stem}: "
    return _readable(text).strip().replace("### ", title, 1).replace("\n### ", "\n## ") + "\n"


def table(path: Path) -> str:
    """Speed, tokens per forward and equal answers of each method of a run; or what batch
    invariance cost.
    """
    if kind_of(path) == COST.name:
        return cost_table(read_cost(path))
    if kind_of(path) == VLLM.name:
        return vllm_table(read_vllm(path))
    content = json.loads(path.read_text(encoding="utf-8"))
    if kind_of(path) == DISTURBED:
        return _disturbed_table(content)
    methods = content["summary"]["all"]
    lines = [
        "| | tokens/s over plain transformers | median | tokens per forward | equal |",
        "|---|---:|---:|---:|---:|",
    ]
    return _readable(
        "\n".join([*lines, *(f"| {' | '.join(_cells(method))} |" for method in methods[1:])])
    )


def _readable(text: str) -> str:
    """Name files as a reader has them."""
    for there, here in _FILES.items():
        text = text.replace(there, here)
    return text


def _disturbed_table(result: dict[str, Any]) -> str:
    """The speed of `auto` by the conditions under which its curve was measured."""
    lines = [
        "| curve measured | share of time without a processor | `auto` over plain decoding |",
        "|---|---:|---:|",
    ]
    for name, when in (
        ("disturbed", f"next to {result['loops']} busy loops"),
        ("quiet", "after they had ended"),
    ):
        waited = result["curves"][name]["conditions"]["waited"]
        lines.append(
            f"| {when} | {'unknown' if waited is None else f'{waited:.0%}'} |"
            f" {result['speed_over_none'][name]:.2f} |"
        )
    setting = (
        f"{result['requests']} requests of {result['tokens']} tokens after {result['warm']} others"
    )
    return "\n".join(
        [*lines, "", f"{result['model']}, bfloat16, {result['threads']} thread(s); {setting}."]
    )


def _cells(figures: dict[str, Any]) -> list[str]:
    name, per_forward = figures["method"], figures["tokens_per_forward"]
    return [
        _OUTSIDE.get(name) or f"paceline `{name}`",
        f"{figures['speedup']:.2f}",
        f"{figures['speedup_median']:.2f}",
        "" if per_forward is None else f"{per_forward:.2f}",
        f"{figures['equal']} of {figures['compared']}",
    ]


if __name__ == "__main__":
    for file, text in pages():
        file.write_text(text, encoding="utf-8")
