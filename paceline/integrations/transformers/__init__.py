"""`model.generate` with drafts: `Strategy` for its `custom_generate`, and `generate`, the full
form.
"""

from paceline.integrations.transformers.strategy import Strategy, generate

__all__ = ["Strategy", "generate"]
