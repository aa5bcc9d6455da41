"""Define the settings of training a hidden-state draft head."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class DraftHeadTraining:
    """Set how a hidden-state draft head is trained.

    Attributes:
        neurons: Size of the hidden layer; each neuron costs time in every step.
        kept: Size of the reduced draft vocabulary, the most frequent tokens of the training text.
        levels: Number of tokens to predict ahead in use; training covers two.
        epochs: Number of passes over the training text.
        batch: Token positions per training step.
        lr: Peak learning rate of AdamW.
        context: Maximum tokens per text chunk; at least 8.
        held_out: Each n-th answer is held out for validation; at least 2.
        seed: Random seed for weight initialisation and data order.
        note: Text for the training record, such as sources and licences.

    Raises:
        ConfigError: A value is out of range.
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
            require_range("draft-head train", name, getattr(self, name), low)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"draft-head train: lr: got {self.lr}; expected a positive number.")
