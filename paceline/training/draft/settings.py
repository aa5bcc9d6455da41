"""Define the settings of training a draft model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range

HEAD_SIZE = 32  # of attention


@dataclass(frozen=True, slots=True)
class DraftTraining:
    """Set how a draft model is trained and evaluated.

    Attributes:
        uses_target_states: Read the target's hidden states (EAGLE-style), with the target's
            embedding and LM head. Such a draft accepts more tokens, but serves only this target.
            False trains an independent model.
        reads_at: Depth of one more layer whose states the draft reads, as a share of the target's
            layers; 0 reads only the last.
        hidden: Hidden size, a multiple of 32. Default: 0, the target's, or 96 without target
            states.
        layers: Number of decoder layers. Default: 0, which means 2, or 3 without target states.
        neurons: Size of each feed-forward layer. Default: 0, 4/3 of the hidden size, or 4 times it
            without target states.
        start: Draft model whose shape and weights training starts from. Default: none.
        minutes: Training time in minutes, validation included; a resumed run may change it.
        coverage: Share of the training tokens that the reduced draft vocabulary covers; 1 keeps the
            whole vocabulary.
        length: Draft tokens per chain in the evaluation; at least 1.
        batch: Tokens per training step; at least 1.
        context: Maximum tokens per text chunk; at least 8.
        lr: Peak learning rate, of Muon for matrices and of AdamW for the embedding and norms.
        answers: Share of the training steps on recorded answers instead of texts, at the end of
            training.
        held_out: Each n-th answer is held out for validation; at least 2.
        validations: Number of validations; the best draft so far is saved.
        seed: Random seed for weight initialisation and data order.
        note: Text for the training record, such as sources and licences.

    Raises:
        ConfigError: A value is out of range.
    """

    uses_target_states: bool = True
    reads_at: float = 0.75
    hidden: int = 0
    layers: int = 0
    neurons: int = 0
    start: str = ""
    minutes: float = 60.0
    coverage: float = 0.99
    length: int = 4
    batch: int = 2048
    context: int = 384
    lr: float = 8e-3
    answers: float = 0.8
    held_out: int = 16
    validations: int = 30
    seed: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "neurons"):
            require_range("draft train", name, getattr(self, name), 0)
        for name, low in (
            ("length", 1),
            ("batch", 1),
            ("context", 8),
            ("held_out", 2),
            ("validations", 1),
        ):
            require_range("draft train", name, getattr(self, name), low)
        require_range("draft train", "answers", self.answers, 0, 1)
        require_range("draft train", "reads_at", self.reads_at, 0, 1)
        if self.hidden % HEAD_SIZE:
            raise ConfigError(
                f"draft train: hidden: got {self.hidden}; expected a multiple of {HEAD_SIZE}."
            )
        for name in ("minutes", "coverage", "lr"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(
                    f"draft train: {name}: got {getattr(self, name)}; expected a positive number."
                )
        require_range("draft train", "coverage", self.coverage, 0, 1)
