"""Check that Python never calls functions that only compiled code may call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import paceline

ROOT = Path(paceline.__file__).parent
_KERNELS = {"inlined", "kernel", "subroutine"}  # Python must not call them
_COMPILED = _KERNELS | {"compiled", "entry_kernel", "callback"}  # their bodies may


def decorators_of(function: ast.FunctionDef) -> set[str]:
    """Return the names of a function's decorators."""
    called = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return {each.id for each in called if isinstance(each, ast.Name)}


def kernels_of(tree: ast.AST) -> set[str]:
    """Return the names of a module's kernels."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {each.name for each in functions if decorators_of(each) & _KERNELS}


def jobs_of(tree: ast.AST) -> set[str]:
    """Return the names of the functions that a module compiles with `TeamJob`."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    work = (each.args[0] for each in calls if ast.unparse(each.func) == "TeamJob")
    return {each.id for each in work if isinstance(each, ast.Name)}


def python_calls(node: ast.AST, names: set[str], jobs: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the name and the line of every call from Python to a function in `names`.

    Args:
        node: Syntax tree.
        names: Names of kernels.
        jobs: Names of functions that are compiled without a decorator.
    """
    if isinstance(node, ast.FunctionDef) and (node.name in jobs or decorators_of(node) & _COMPILED):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
        yield node.func.id, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from python_calls(child, names, jobs)


def test_python_calls_no_kernels() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}
    modules = {
        ".".join(("paceline", *path.relative_to(ROOT).with_suffix("").parts)): kernels_of(tree)
        for path, tree in trees.items()
    }
    assert sum(map(len, modules.values())) > 100
    calls = []
    for path, tree in trees.items():
        names = kernels_of(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                # A package may pass on the kernels of its modules.
                offered = (modules[name] for name in modules if name.startswith(node.module))
                names |= {each.name for each in node.names} & set().union(*offered)
        calls += [(path.name, *call) for call in python_calls(tree, names, jobs_of(tree))]
    assert calls == []


def test_a_call_from_python_is_found() -> None:
    source = (
        "@inlined\ndef f(): return 1\n\ndef g(): return f()\n\n@compiled\ndef h(): return f()\n"
    )
    tree = ast.parse(source)
    assert list(python_calls(tree, kernels_of(tree), set())) == [("f", 4)]
