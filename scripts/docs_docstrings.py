"""Prepare docstrings for the API reference.

The reference needs an empty line before each section, which the docstrings do not have.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"(?<=\S)\n(?=(?:Args|Attributes|Returns|Raises|Example):\n)")


class Sections(griffe.Extension):
    """Put an empty line before each section of a docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = _SECTION.sub("\n\n", obj.docstring.value)
