"""What is recorded, and how a head is trained: frozen dataclasses, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from paceline.core.request import SamplingParams
from paceline.errors import ConfigError
from paceline.util.config import require_range
from paceline.util.options import ModelOptions, PromptOptions, refuse_per_request


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """What is recorded.

    Attributes:
        out: folder of the recording; an interrupted one is continued.
        models: the pair.
        selection: the prompts, as for a bench.
        answers: file of `paceline record` to learn from, in place of prompts; its sampling settings
            are those of the recording.
        skip_every: leave out each n-th line of each file, to report on later; 0 = none.
        keep: chance that a position keeps the target's token (the paper's r); near 1, features are
            more like those in use.
        mixtures: mixed sequences per answer; the paper's one leaves few drafted positions where
            `keep` is high. Of a draft that reads the target's states, which needs no mixing: places
            of a chain that each token is drafted in.
        sampling: how the target answers; prompt number n has seed + n. A head learns no penalties
            and no min_tokens.
        batch: prompts answered together, and per shard.

    Raises:
        ConfigError: a value outside its range.
    """

    out: Path = Path("recording")
    models: ModelOptions = ModelOptions()
    selection: PromptOptions = PromptOptions()
    answers: Path | None = None
    skip_every: int = 0
    keep: float = 0.15
    mixtures: int = 1
    sampling: SamplingParams = SamplingParams()
    batch: int = 8

    def __post_init__(self) -> None:
        require_range("head record", "batch", self.batch, 1)
        require_range("head record", "mixtures", self.mixtures, 1)
        require_range("head record", "skip_every", self.skip_every, 0)
        refuse_per_request("head record", self.sampling)
        if not 0 <= self.keep < 1:
            raise ConfigError(f"head record: got keep={self.keep}; expected 0 to below 1.")
        for name, off in (
            ("repetition_penalty", 1),
            ("presence_penalty", 0),
            ("frequency_penalty", 0),
            ("min_tokens", 0),
        ):
            value = getattr(self.sampling, name)
            if value != off:
                raise ConfigError(
                    f"head record: {name}: got {value}; expected {off}, off. Leave it out."
                )


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How a head is trained.

    Attributes:
        depth: residual blocks, 0 to 4 (the paper's D).
        reject_weight: weight of rejections in the loss (the paper's w_rej; acceptances have 1).
        scalars: the last layer also reads scalars of the draft's distribution; not in the paper.
        epochs: passes over the recordings.
        lr: highest learning rate of AdamW.
        weight_decay: that of AdamW.
        batch: positions per step.
        warmup: share of the steps in which the learning rate grows.
        dev: share of the prompts that calibration is fitted on.
        held_out: share of the prompts that is only reported on.
        seed: of the split, the first weights and the order.
        note: for the card, such as the prompts' sources and licences.

    Raises:
        ConfigError: a value outside its range.
    """

    depth: int = 3
    reject_weight: float = 6.0
    scalars: bool = True
    epochs: int = 10
    lr: float = 1e-3
    weight_decay: float = 0.01
    batch: int = 1024
    warmup: float = 0.03
    dev: float = 0.1
    held_out: float = 0.1
    seed: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        from paceline.drafters.specdec_pp.card import (
            MOST_BLOCKS,
        )  # imports torch, which the help texts do not need

        require_range("head train", "depth", self.depth, 0, MOST_BLOCKS)
        for name, low in (("epochs", 1), ("batch", 1), ("weight_decay", 0)):
            require_range("head train", name, getattr(self, name), low)
        for name in ("reject_weight", "lr"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(
                    f"head train: got {name}={getattr(self, name)}; expected a positive number."
                )
        for name in ("warmup", "dev", "held_out"):
            require_range("head train", name, getattr(self, name), 0, 0.5)
