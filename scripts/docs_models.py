"""Write the list of tested architectures from the tests."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.model.verified import VERIFIED

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the tests are not installed
from tests.support.tree_models import CHAINS  # noqa: E402


def architectures() -> str:
    """Return the model types that the tests check, by how drafts are verified."""
    chains = {model_type for model_type, _ in CHAINS.values()}
    lines = []
    for how, types in (
        ("Draft trees, one forward pass for a batch", VERIFIED - chains),
        ("Chains, one request per forward pass", VERIFIED & chains),
    ):
        lines.append(f"- {how}: {', '.join(f'`{name}`' for name in sorted(types))}.")
    return "\n".join(lines)
