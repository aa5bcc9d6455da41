"""Propose draft tokens; each drafter is a module or package in this folder.

`registry` lists the drafters, and `creation` builds them from drafter specs.
"""

from __future__ import annotations

from paceline.drafters.creation import Maker, create, uses_draft_model
from paceline.drafters.registry import GROUP, PLAIN, REGISTRY, DrafterEntry, available, entry

__all__ = [
    "GROUP",
    "PLAIN",
    "REGISTRY",
    "DrafterEntry",
    "Maker",
    "available",
    "create",
    "entry",
    "uses_draft_model",
]
