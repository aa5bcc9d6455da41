"""How a draft model is trained and judged: frozen dataclasses, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range

HEAD_SIZE = 32  # of attention


@dataclass(frozen=True, slots=True)
class DraftTraining:
    """How a draft is trained.

    Attributes:
        reads_states: it reads the target's hidden states, and begins and ends with the target's own
            embedding and LM head: by far the better draft, for this target in this library alone.
            Else a plain checkpoint, with an embedding of its own.
        reads_at: the states of one more layer that it reads, at this share of the target's depth; 0
            = the last ones alone.
        hidden: its hidden size, a multiple of 32; 0 = the target's, or 96.
        layers: its decoder layers; 0 = 2, or 3.
        neurons: of each feed-forward part; 0 = a third more than `hidden`, or four times.
        start: another draft, whose shape and weights it begins with; "" = none.
        minutes: of training, validation included; one that was interrupted may go on with more or
            fewer.
        coverage: share of what is learnt from that the tokens of its reduced vocabulary make up; 1
            = the whole vocabulary.
        length: K, tokens of the chains that it is judged by.
        batch: tokens per step.
        context: most tokens of a stretch of text.
        lr: highest learning rate, of Muon for matrices and of AdamW for the embedding and norms.
        answers: share of the steps that learn from recorded answers, not from texts, towards the
            end.
        held_out: each n-th answer is held back, and judges.
        validations: how often it is judged, and saved when it is the best so far.
        seed: of the first weights and the order.
        note: for the record, such as sources and licences.

    Raises:
        ConfigError: a value outside its range.
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
