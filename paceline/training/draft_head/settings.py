"""Define the settings of training a hidden-state draft head."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class DraftHeadTraining:
    """How foresight is trained.

    Attributes:
        neurons: of the layer beside the linear map; each costs time in every step.
        kept: tokens of the vocabulary that may be guessed, the commonest ones of what is learnt
            from.
        levels: how many tokens ahead the guesses go when they are used; it is taught for two.
        epochs: how often everything is learnt from.
        batch: places of a step.
        lr: highest learning rate, of AdamW.
        context: most tokens of a stretch of text.
        held_out: each n-th answer is held back, and judges.
        seed: of the first weights and the order.
        note: for the record, such as sources and licences.

    Raises:
        ConfigError: a value outside its range.
    """

    neurons: int = 1024
    kept: int = 4096
    levels: int = 3
    epochs: int = 3
    batch: int = 512
    lr: float = 1e-3
    context: int = 768
    held_out: int = 16
    seed: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        lows = (
            ("neurons", 1),
            ("kept", 1),
            ("levels", 1),
            ("epochs", 1),
            ("batch", 1),
            ("context", 8),
            ("held_out", 2),
        )
        for name, low in lows:
            require_range("foresight train", name, getattr(self, name), low)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"foresight train: lr: got {self.lr}; expected a positive number.")
