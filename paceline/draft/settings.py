"""How a draft model is trained and judged: frozen dataclasses, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.common.config import require_range
from paceline.errors import ConfigError

HEAD_SIZE = 32


@dataclass(frozen=True, slots=True)
class DraftTraining:
    """How a draft is trained.

    Attributes:
        hidden: its hidden size, a multiple of 32. layers: its decoder layers.
        neurons: of each feed-forward part; 0 = four times `hidden`.
        minutes: of training, validation included; one that was interrupted may go on with more or fewer.
        coverage: share of what is learnt from that the tokens of its reduced vocabulary make up; 1 = the whole vocabulary.
        length: K, tokens of the chains that it is judged by.
        batch: tokens per step. context: most tokens of a stretch of text.
        lr: highest learning rate, of Muon for matrices and of AdamW for the embedding and norms.
        answers: share of the steps that learn from recorded answers, not from texts, towards the end.
        held_out: each n-th answer is held back, and judges.
        validations: how often it is judged, and saved when it is the best so far.
        seed: of the first weights and the order.
        note: for the record, such as sources and licences.

    Raises:
        ConfigError: a value outside its range.
    """

    hidden: int = 96
    layers: int = 3
    neurons: int = 0
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
        for name, low in (("layers", 1), ("neurons", 0), ("length", 1), ("batch", 1), ("context", 8), ("held_out", 2)):
            require_range("draft train", name, getattr(self, name), low)
        require_range("draft train", "validations", self.validations, 1)
        require_range("draft train", "answers", self.answers, 0, 1)
        if self.hidden < HEAD_SIZE or self.hidden % HEAD_SIZE:
            raise ConfigError(f"draft train: hidden: got {self.hidden}; expected a multiple of {HEAD_SIZE}.")
        for name in ("minutes", "coverage", "lr"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"draft train: {name}: got {getattr(self, name)}; expected a positive number.")
        require_range("draft train", "coverage", self.coverage, 0, 1)
