"""Plain decoding as a drafter, so that the loop needs no second path."""

from __future__ import annotations

from paceline.core.drafter import Plain
from paceline.drafters.shared.file_options import NoOptions


class NoDrafter(Plain):
    """Proposes nothing."""

    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions) -> NoDrafter:
        """Build it from its (empty) options."""
        return cls()
