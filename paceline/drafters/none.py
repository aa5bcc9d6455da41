"""Plain decoding, as a drafter that proposes nothing."""

from __future__ import annotations

from paceline.core.drafter import Plain
from paceline.drafters.shared.file_options import NoOptions


class NoDrafter(Plain):
    """Proposes empty trees, which means plain decoding."""

    keeps_tokens = True
    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions) -> NoDrafter:
        """Build the drafter; it has no options."""
        return cls()
