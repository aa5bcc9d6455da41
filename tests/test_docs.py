"""Check README and docs against the code: snippets, links, and generated tables."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path

import pytest

import paceline.integrations.transformers
import paceline.serve
from paceline import demo, errors
from paceline.drafters import REGISTRY
from paceline.model.loading import load_model
from paceline.model.verified import VERIFIED
from paceline.serve.requests import ChatRequest, CompletionRequest
from tests.support import multimodal, multimodal_processors
from tests.support.llama_cpp import HAS_LIBRARY, NO_LIBRARY
from tests.support.state_heads import random_eagle3

ROOT = Path(__file__).parent.parent
MAX_README_LINES = 120
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# Snippets name real models; the tests run them offline on the embedded one.
HUB_IDS = {
    name: str(demo.TARGET)
    for name in (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "LiquidAI/LFM2-350M",
        "meta-llama/Llama-3.1-8B-Instruct",
    )
}
MULTIMODAL = "llava-hf/llava-1.5-7b-hf"  # tests use a tiny model of the same class
EAGLE3_HEAD = "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"  # tests use a random head
GGUF_FILE = '"model.gguf"'  # tests use a tiny file
SNIPPETS = [
    pytest.param(code, id=f"{page.relative_to(ROOT).with_suffix('')}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.fixture(scope="module")
def multimodal_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("llava"))
    multimodal.model("llava").save_pretrained(folder)
    multimodal_processors.processor("llava").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if MULTIMODAL in code:
        code = code.replace(f'"{MULTIMODAL}"', repr(request.getfixturevalue("multimodal_folder")))
    if GGUF_FILE in code:
        writing = pytest.importorskip("tests.support.gguf")
        code = code.replace(GGUF_FILE, repr(str(writing.write_gguf(tmp_path / "a.gguf", "Q8_0"))))
    if EAGLE3_HEAD in code:
        target = load_model(str(demo.TARGET))
        code = code.replace(EAGLE3_HEAD, random_eagle3(target))
    if 'engine="llama.cpp"' in code and not HAS_LIBRARY:
        pytest.skip(NO_LIBRARY)
    for hub_id, path in HUB_IDS.items():
        code = code.replace(f'"{hub_id}"', repr(path))
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


def test_links_resolve() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


def test_every_drafter_is_on_the_page_for_choosing() -> None:
    page = (ROOT / "docs" / "choose-a-drafter.md").read_text(encoding="utf-8")
    table = page.partition("## All drafters")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| \[?`(\w+)`", table, re.MULTILINE)) == set(REGISTRY)


def test_every_drafter_has_a_method_page_with_its_options() -> None:
    methods = ROOT / "docs" / "methods"
    pages = "".join(page.read_text(encoding="utf-8") for page in methods.glob("*.md"))
    overview = (methods / "index.md").read_text(encoding="utf-8").partition("## Measured")[0]
    assert set(re.findall(r"^\| \[?`(\w+)`", overview, re.MULTILINE)) == set(REGISTRY)
    for name in set(REGISTRY) - {"none"}:
        assert f"<!-- table of options-{name} -->" in pages


def test_pages_have_no_marks_of_a_merge_conflict() -> None:
    marks = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
    assert marks.search("text\n<<<<<<< HEAD\n")
    assert not [page for page in PAGES if marks.search(page.read_text(encoding="utf-8"))]


def test_options_in_drafter_strings_exist() -> None:
    for page in PAGES:
        if page.parent.name != "benchmarks" and page.name != "CHANGELOG.md":
            for name, options in re.findall(
                r"[`\" ](\w+):((?:\w+=[^\s,`\"']+,?)+)", page.read_text()
            ):
                if name in REGISTRY:
                    known = {
                        field.name for field in dataclasses.fields(REGISTRY[name].load().Options)
                    }
                    used = {part.split("=")[0] for part in options.rstrip(",.").split(",")}
                    assert used <= known, page.name


def test_the_drawing_of_the_window_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    drawing = importlib.import_module("draw_window").drawing()
    assert drawing in (ROOT / "docs" / "methods" / "lookahead.md").read_text(encoding="utf-8")


def test_tables_and_plots_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that tables and plots are as scripts/update_benchmarks.py writes them."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    for page, text in importlib.import_module("update_benchmarks").pages():
        assert page.read_text(encoding="utf-8") == text, (
            f"{page.name} is stale; run scripts/update_benchmarks.py"
        )


def test_every_result_is_shown_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    shown = importlib.import_module("update_benchmarks").shown_results()
    results = list((ROOT / "docs" / "results").iterdir())
    assert {result.name for result in results} <= {f"{name}.json" for name in shown}
    assert sum(result.stat().st_size for result in results) < 1_000_000
    pictures = list((ROOT / "docs" / "img").iterdir())
    assert sum(picture.stat().st_size for picture in pictures) < 500_000
    for result in results:
        assert not {"calls", "cells"} & json.loads(result.read_text(encoding="utf-8")).keys()


def test_verified_architectures_are_exact_in_the_survey() -> None:
    survey = json.loads((ROOT / "docs" / "results" / "model-survey.json").read_text())
    outcomes = {row["model_type"]: row["outcome"] for row in survey["rows"]}
    assert {outcomes[name] for name in VERIFIED} <= {"trees", "chains"}


def test_the_glossary_has_the_main_terms() -> None:
    glossary = (ROOT / "docs" / "concepts" / "glossary.md").read_text()
    assert all(
        f"| {word} |" in glossary
        for word in (
            "target",
            "draft token",
            "draft tree",
            "accepted tokens",
            "bonus token",
            "pending tokens",
            "forward pass",
            "chunked prefill",
            "prefix caching",
            "preemption",
            "batch invariance",
        )
    )


def test_reference_lists_every_environment_variable() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "paceline").rglob("*.py"))
    page = (ROOT / "docs" / "reference" / "environment.md").read_text("utf-8")
    assert set(re.findall(r"PACELINE_[A-Z_]+", code)) == set(re.findall(r"PACELINE_[A-Z_]+", page))


def test_reference_lists_every_field_and_metric_of_the_server() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text("utf-8")
    fields = CompletionRequest.model_fields | ChatRequest.model_fields
    code = (ROOT / "paceline" / "serve" / "metrics.py").read_text("utf-8")
    metrics = re.findall(r'^    "(\w+)": \(|"(\w+_seconds)"', code, re.MULTILINE)
    metrics = [gauge or histogram for gauge, histogram in metrics]
    assert len(metrics) >= 15
    assert [name for name in (*fields, *metrics) if f"`{name}" not in page] == []


def test_reference_lists_every_error() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    names = {name for name in vars(errors) if name.endswith("Error")}
    assert all(f"`{name}`" in page for name in names)


def test_anchors_of_the_command_reference_exist() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    headings = re.findall(r"^### (.*)$", page, re.MULTILINE)
    anchors = {heading.replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\(#([\w-]+)\)", page)) <= anchors


def test_reference_lists_every_public_name() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = {
        name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    }
    public = [
        *paceline.__all__,
        *paceline.serve.__all__,
        *paceline.integrations.transformers.__all__,
    ]
    assert set(public) - {"__version__", "demo"} <= listed
