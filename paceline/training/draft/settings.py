"""Define the settings and constants for training a draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from paceline.errors import ConfigError
from paceline.training.settings import TrainingSettings
from paceline.util.config import require_range

DraftKind = Literal["eagle", "independent", "eagle3"]

HEAD_SIZE = 32  # Dimensions of an attention head.

# Schedule; the values were chosen with draft models for SmolLM2-135M-Instruct.
WARM_UP_STEPS = 50  # Steps of linear warm-up.
CONSTANT_SHARE = 0.4  # Fraction of the time before the learning rate starts to fall linearly to 0.
FIRST_ANSWERS_SHARE = 0.4  # Proportion of steps with answers at the start, relative to the end.
EMBEDDING_LR_FACTOR = 0.5  # Learning rate of the embedding, relative to the peak.
MAX_GRADIENT_NORM = 1.0  # Maximum gradient norm; larger gradients are clipped.
ANSWERS_WEIGHT = 0.7  # Weight of answers in choosing the reduced vocabulary; texts have the rest.

# Initial weights.
INDEPENDENT_HIDDEN, INDEPENDENT_LAYERS = 96, 3  # Default shape of an independent draft model.
INDEPENDENT_DEVIATION = 0.04  # Standard deviation of an independent draft model's weights.
EMBEDDING_DEVIATION = 0.06  # Standard deviation of the projected embedding.
EAGLE_LAYERS = 2  # Default number of layers of a draft model that reads target states.
EAGLE_DEVIATION = 0.03  # Standard deviation of the weights of such a draft model.
LEAST_SQUARES_PAIRS = 60_000  # Number of pairs of states to which the linear map is fitted.
LEAST_SQUARES_RIDGE = 100.0  # Ridge, as a number of unit-size pairs whose next state is 0.

EAGLE3_LAYERS = 1  # Default number of layers of an EAGLE-3 head.
EAGLE3_HEAD = 64  # Dimensions of an attention head, for targets without attention.
EAGLE3_NORM_EPS = 1e-5  # Epsilon of an EAGLE-3 head's norms, as in most published heads.

# Loss of a draft model that reads target states.
GUESS_WEIGHTS = (1.0, 0.6, 0.5, 0.4)  # Weight after 0, 1, 2, and 3 or more guesses.
PROMPT_WEIGHT = 0.3  # Factor for the weight of prompt positions, where no draft is needed.
UNREAD_SHARE = 0.1  # Fraction of batches whose first tokens have no states, as with prefix caching.
FREQUENT_SHARE = 0.9  # Fraction of all tokens that the frequent tokens must cover.
SAMPLING_INTERVAL = 8  # Number of rare tokens that each sampled token represents.
LOSS_ROWS = 256  # Positions whose logits are computed together; they fit into the CPU's cache.

# Evaluation.
CHAIN_LENGTHS = tuple(range(1, 9))  # Numbers of draft tokens per chain to compare.
TIMED_FORWARDS = 24  # Number of forward passes per measurement.
TIMED_CONTEXT = 160  # Length of the text in each timed forward pass, in tokens.


@dataclass(frozen=True, slots=True)
class DraftTraining(TrainingSettings):
    """Options for training and evaluating a draft model.

    Attributes:
        batch: Number of tokens per training step; at least 1.
        lr: Peak learning rate, for both Muon (matrices) and AdamW (embedding and norms); above 0.
        kind: Kind of draft model. "eagle" uses the target's hidden states, embedding and LM head.
            An "eagle" draft model works only with its target and only in paceline. "eagle3" also
            uses hidden states, and is saved as an EAGLE-3 head in the format of the speculators
            library, which vLLM can load. "independent" uses only tokens.
        reads_at: For "eagle": depth of a second target layer whose hidden states the draft model
            reads. The depth is a fraction of the target's number of layers, from 0 to 1. With 0,
            the draft model reads only the target's last layer.
        hidden: Hidden size, a multiple of 32; 0 uses the target's hidden size, or 96 for
            "independent". "eagle3" always uses the hidden size of the target.
        layers: Number of decoder layers; at least 0; 0 uses 2 layers for "eagle", 3 for
            "independent" and 1 for "eagle3".
        neurons: Size of each feed-forward layer; at least 0; 0 uses 4/3 of the hidden size for
            "eagle", 4 times the hidden size for "independent", and the target's size for "eagle3".
        start: Start from the shape and the weights of this draft model; not for "eagle3". Default:
            none.
        minutes: Training time in minutes, including validation; above 0. When you resume a run, you
            can set a different time.
        coverage: Share of the training text that the reduced draft vocabulary must cover; above 0,
            at most 1; 1 keeps the whole vocabulary.
        length: Number of draft tokens per chain in the evaluation; at least 1.
        context: Maximum number of tokens per text chunk; at least 8.
        answers: Share of the training steps that use recorded answers; from 0 to 1. The first steps
            use text, and the last steps use recorded answers.
        held_out: Hold out every n-th answer for validation; at least 2.
        validations: Number of validations during training; at least 1. Each validation saves the
            draft model if it is the best so far.

    Raises:
        ConfigError: A value is out of range.
    """

    batch: int = 2048
    lr: float = 8e-3
    kind: DraftKind = "eagle"
    reads_at: float = 0.75
    hidden: int = 0
    layers: int = 0
    neurons: int = 0
    start: str = ""
    minutes: float = 60.0
    coverage: float = 0.99
    length: int = 4
    context: int = 384
    answers: float = 0.8
    held_out: int = 16
    validations: int = 30

    @property
    def uses_target_states(self) -> bool:
        """Return whether the draft model uses the target's hidden states."""
        return self.kind != "independent"

    def __post_init__(self) -> None:
        minimums = {"hidden": 0, "layers": 0, "neurons": 0, "length": 1, "context": 8}
        minimums |= {"held_out": 2, "validations": 1}
        self.require("draft train", minimums, positive=("minutes", "coverage"))
        for name in ("answers", "reads_at", "coverage"):
            require_range("draft train", name, getattr(self, name), 0, 1)
        if self.kind not in get_args(DraftKind):
            raise ConfigError(
                f"\0draft train: kind\0: got {self.kind!r}; expected one of"
                f" {', '.join(get_args(DraftKind))}."
            )
        for name in ("hidden", "start"):
            if self.kind == "eagle3" and getattr(self, name):
                raise ConfigError(
                    f"\0draft train: {name}\0: got {getattr(self, name)!r} for an EAGLE-3 head;"
                    " expected none, because the head has the target's hidden size and is trained"
                    " from scratch. Leave it out."
                )
        if self.hidden % HEAD_SIZE:
            raise ConfigError(
                f"\0draft train: hidden\0: got {self.hidden}; expected a multiple of {HEAD_SIZE}."
            )
