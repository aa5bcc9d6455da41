"""Imports go down the list of layers only, and what needs no torch imports none."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "paceline"
# Each layer may import itself and the ones before it; drafters only what they share.
LAYERS = [
    ["errors", "config", "files"],
    ["text", "sequence", "tree"],
    ["drafter", "sampling", "kv_cache", "layout", "attention", "architecture"],
    ["model", "verify", "loading", "acceptance"],
    ["step", "metrics", "selfcheck", "parallel"],
    ["drafters", "datastore"],
    ["batch", "llm", "replay", "serving"],
    ["integrations", "bench", "head", "cli", "demo", "__init__", "__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
DRAFTER_MODULES = [path.stem for path in (ROOT / "drafters").glob("*.py")]
MODULES = [str(path.relative_to(ROOT).with_suffix("")) for path in sorted(ROOT.rglob("*.py"))]


def part_of(module: str) -> str:
    """The unit a module belongs to: its folder, or itself; `cli_options` counts as `cli`."""
    head = module.split("/")[0]
    return head if head in RANK else head.split("_")[0]


def imported(module: str) -> set[str]:
    """Modules of the package that `module` imports when it is used, type hints left aside."""
    tree = ast.parse((ROOT / f"{module}.py").read_text())
    hints = {id(inner) for node in ast.walk(tree) if is_type_checking(node) for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in hints:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("paceline.").replace(".", "/") for name in found if name.startswith("paceline.")}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    for name in imported(module):
        if part_of(name) in RANK:  # else a public name such as paceline.LLM
            assert RANK[part_of(name)] <= RANK[part_of(module)], f"{module} imports {name}"


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("drafters/") and "__init__" not in module])
def test_drafters_do_not_import_each_other(module: str) -> None:
    """But for what they share, which names no drafter."""
    from paceline.drafters import REGISTRY

    drafters = {f"drafters/{entry.module}" for entry in REGISTRY.values()}
    for name in imported(module):
        assert not any(name == other or name.startswith(f"{other}/") for other in drafters), f"{module} imports {name}"


def test_every_module_has_a_layer() -> None:
    assert {part_of(module) for module in MODULES} <= set(RANK)


@pytest.mark.parametrize(
    "module",
    ["paceline", "paceline.tree", "paceline.sequence", "paceline.drafter"]
    + [f"paceline.drafters.{name}" for name in ("prompt_lookup", "rest", "pia")],
)
def test_light_modules_need_no_torch(module: str) -> None:
    code = f"import {module}, sys; assert not {{'torch', 'transformers'}} & set(sys.modules), 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr


def test_drafters_are_listed_and_built_without_torch() -> None:
    """The registry imports a drafter's module when it is chosen, not before."""
    code = """
import sys
from paceline.drafters import available, create
assert "draft_model" in available()
assert create("prompt_lookup:length=3").name == "prompt_lookup"
assert create("sssd").name == "sssd"
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr


def test_public_names() -> None:
    import paceline

    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        paceline.nothing  # noqa: B018
