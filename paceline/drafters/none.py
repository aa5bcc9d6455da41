"""Provide plain decoding as a drafter that never proposes any tokens."""

from __future__ import annotations

from paceline.core.drafter import Plain
from paceline.drafters.shared.file_options import NoOptions


class NoDrafter(Plain):
    """Proposes only empty trees, so the engine performs plain decoding."""

    keeps_tokens = True
    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions) -> NoDrafter:
        """Build the drafter, which has no options."""
        return cls()
