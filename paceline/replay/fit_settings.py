"""Settings of the fit of `sssd`'s calibration."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError

FIT_ROUNDS = 2  # Each round records the trees that the calibration before it selects.
TREE_NODES = 24  # Nodes of the trees whose candidates are recorded.
KNOWN_TOKENS = 64  # Recorded tokens that label the candidates of one step.
MAX_WRONG_CANDIDATES = 24  # Wrong candidates of one step. More are sampled and weighted.
ADAM_LEARNING_RATE = 6e-3  # At the first step. The rate falls to zero along a cosine.


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Options of one fit.

    Attributes:
        epochs: Passes over the samples; at least 1; default 24.
        batch: Samples per optimiser step; at least 1; default 2048.
        seed: Random seed of the initial weights and of the order of the samples.
    """

    epochs: int = 24
    batch: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise ConfigError(
                f"fit: got epochs={self.epochs}, batch={self.batch}; expected at least 1 of each."
                " Raise it."
            )
