"""Find the source files on which the compiled code of a module depends.

Compiled code contains a copy of the functions that it calls and of the constants that it uses. A
change in an imported module can therefore make the compiled code outdated. The search follows the
top-level imports of settings modules and of modules with compiled code, because no other imports
can affect compiled code.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[2]  # contains the package
_IMPORT = re.compile(r"^(?:from|import) +(paceline(?:\.\w+)*)(?: +import +(\([^)]*\)|.*))?", re.M)
_COMPILED = re.compile(r"^(?:from|import) +(?:paceline\.util\.compiled|numba|llvmlite)\b", re.M)


class _Source(NamedTuple):
    """A Python source file and its imports.

    Attributes:
        checksum: SHA-256 of the file's content.
        imports: Files of the imported modules that may affect compiled code.
    """

    checksum: bytes
    imports: tuple[str, ...]


@cache
def sources_digest(path: str) -> str:
    """Hash the sources of a module and of all modules that its compiled code uses.

    Args:
        path: File of the module.
    """
    pending, known = [path], {path}
    while pending:
        new = [each for each in _read(pending.pop()).imports if each not in known]
        known.update(new)
        pending += new
    digest = hashlib.sha256()
    for source in sorted(known):
        digest.update(_read(source).checksum)
    return digest.hexdigest()


@cache
def _read(path: str) -> _Source:
    # A function that was defined in an interactive session has no source file.
    text = Path(path).read_text(encoding="utf-8") if os.path.isfile(path) else ""
    reaches = "settings" in os.path.basename(path) or _COMPILED.search(text)
    return _Source(hashlib.sha256(text.encode()).digest(), _imports(text) if reaches else ())


def _imports(text: str) -> tuple[str, ...]:
    """Return the files of all modules that Python code imports at top level."""
    return tuple(
        dict.fromkeys(
            source
            for module, names in _IMPORT.findall(text)
            for name in ("", *re.findall(r"\w+", names))
            for source in _files(".".join(filter(None, (module, name))))
        )
    )


@cache
def _files(module: str) -> tuple[str, ...]:
    """Return the file of a module in this package; empty if there is none."""
    base = os.path.join(_ROOT, *module.split("."))
    candidates = f"{base}.py", os.path.join(base, "__init__.py")
    return tuple(source for source in candidates if os.path.isfile(source))
