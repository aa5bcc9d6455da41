"""Define the settings and constants for training a hidden-state draft head."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.training.settings import TrainingSettings

TRAINED_LEVELS = 2  # Number of tokens that the head predicts ahead during training.
SECOND_WEIGHT = 0.3  # Weight of the second token's loss.
WEIGHT_DECAY = 0.01  # Weight decay of AdamW.
WARM_UP_SHARE = 0.1  # Fraction of the steps during which the learning rate increases.
RIDGE = 200.0  # Ridge of the initial linear map, as a number of positions whose next state is 0.
EVALUATION_ROWS = 4096  # Positions computed together when no gradient is needed.
TOP_GUESSES = 8  # Number of guesses in which the evaluation looks for the target's token.


@dataclass(frozen=True, slots=True)
class DraftHeadTraining(TrainingSettings):
    """Options for training a hidden-state draft head.

    Attributes:
        batch: Number of token positions per training step; at least 1.
        lr: Peak learning rate of AdamW; above 0.
        neurons: Size of the hidden layer; at least 1. More neurons slow down every decode step.
        kept: Size of the reduced draft vocabulary, which contains the most frequent tokens in the
            training text; at least 1.
        levels: Number of tokens that the head predicts ahead when drafting; at least 1. In
            training, the head always predicts two tokens ahead.
        epochs: Number of passes over the training text; at least 1.
        context: Maximum number of tokens per text chunk; at least 8.
        held_out: Hold out every n-th answer for validation; at least 2.

    Raises:
        ConfigError: A value is out of range.
    """

    batch: int = 512
    neurons: int = 1024
    kept: int = 4096
    levels: int = 3
    epochs: int = 3
    context: int = 768
    held_out: int = 16

    def __post_init__(self) -> None:
        minimums = {"neurons": 1, "kept": 1, "levels": 1, "epochs": 1, "context": 8, "held_out": 2}
        self.require("draft-head train", minimums)
