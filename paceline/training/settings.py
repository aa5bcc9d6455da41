"""Define the settings and constants that all training runs share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range

LOSS_WINDOW = 50  # Number of steps over which a reported loss is averaged.
LENGTH_SORTED_BATCHES = 64  # Number of batches sorted together by text length, to reduce padding.

# Settings of Muon and AdamW, as recommended by Jordan et al. (2024) and Liu et al. (2025).
MUON_MOMENTUM = 0.95
MUON_WEIGHT_DECAY = 0.05
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ROUNDS = 5
MUON_STEP_RMS = 0.2  # Root mean square of an update, relative to the learning rate, as with AdamW.
ADAM_BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Options that all training commands share.

    Attributes:
        batch: Number of training examples per step; at least 1.
        lr: Peak learning rate; above 0.
        seed: Random seed for weight initialisation and data order.
        note: Text for the training record, such as sources and licences. Default: none.

    Raises:
        ConfigError: A value is out of range.
    """

    batch: int = 1024
    lr: float = 1e-3
    seed: int = 0
    note: str = ""

    def require(
        self, command: str, minimums: Mapping[str, float], positive: Iterable[str] = ()
    ) -> None:
        """Check the ranges of `batch`, `lr` and the settings of a subclass.

        Args:
            command: Name of the command, for error messages.
            minimums: Lowest allowed value of each additional setting, by name.
            positive: Names of additional settings that must be positive and finite.
        Raises:
            ConfigError: A value is out of range.
        """
        for name, low in {"batch": 1, **minimums}.items():
            require_range(command, name, getattr(self, name), low)
        for name in ("lr", *positive):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"\0{command}: {name}\0: got {value}; expected a positive number."
                )
