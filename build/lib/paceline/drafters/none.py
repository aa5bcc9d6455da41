"""Plain decoding as a drafter (null object)."""

from __future__ import annotations

from paceline.core.drafter import Plain
from paceline.drafters.shared.file_options import NoOptions


class NoDrafter(Plain):
    """Propose empty trees: plain decoding."""

    keeps_tokens = True
    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions) -> NoDrafter:
        """Build the drafter; it has no options."""
        return cls()
