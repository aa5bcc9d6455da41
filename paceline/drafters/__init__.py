"""Propose draft tokens; each drafter is a module or package in this folder.

`registry` lists the drafters, and `creation` builds them from drafter specs.
"""

from __future__ import annotations

from paceline.drafters.creation import Maker, check_spec, create, uses_draft_model
from paceline.drafters.registry import GROUP, PLAIN, REGISTRY, DrafterEntry, available, entry

__all__ = [
    "GROUP",
    "PLAIN",
    "REGISTRY",
    "DrafterEntry",
    "Maker",
    "available",
    "check_spec",
    "create",
    "entry",
    "uses_draft_model",
]
