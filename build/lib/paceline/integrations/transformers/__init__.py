"""Add drafting to transformers: `Strategy` for `custom_generate`, and `generate`."""

from paceline.integrations.transformers.strategy import Strategy, generate

__all__ = ["Strategy", "generate"]
