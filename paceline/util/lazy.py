"""Import a module of a package only when a name from the module is first used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, modules: Mapping[str, Collection[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` that imports a name's module when the name is first used.

    Args:
        package: Name of the package, for error messages.
        modules: Names that each module defines, keyed by the module's full name.
    """

    def find(name: str) -> Any:
        for module, names in modules.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
