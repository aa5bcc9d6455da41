"""Define the settings for recording training data and training acceptance heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from paceline.training.settings import TrainingSettings
from paceline.util.config import require_range
from paceline.util.options import ModelOptions, PromptOptions, refuse_per_request

MAX_GRADIENT_NORM = 1.0  # Maximum gradient norm; larger gradients are clipped.
FIT_STEPS = 200  # Maximum number of L-BFGS steps; fitting a few weights takes about 20.
FIT_GRADIENT, FIT_CHANGE = 1e-10, 1e-14  # Gradient and change at which L-BFGS stops.
CALIBRATION_BINS = 15  # Bins for the expected calibration error, as in Guo et al. (2017).
# Stopping thresholds whose cost `paceline head calibrate` measures.
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """Options for recording the training data of an acceptance head.

    Attributes:
        out: Folder for the recording. If the folder contains an interrupted recording, the command
            resumes it.
        models: Target and draft model.
        selection: Prompts, selected as for a benchmark.
        answers: File written by `paceline record`, used instead of prompts. The command takes the
            answers and the sampling settings from this file. Default: none.
        skip_every: Leave out every n-th line of each input file, so that you can evaluate the head
            on these lines later; at least 0; 0 leaves out none.
        keep: Probability that a position of a mixed sequence keeps the target's token instead of a
            draft token (the paper's r); at least 0 and less than 1. The higher this probability,
            the more the training inputs resemble those in decoding.
        mixtures: Number of training sequences per answer; each sequence mixes tokens of both
            models; at least 1. The paper uses 1. For a draft model that uses the target's hidden
            states, this option is the number of draft tokens recorded after each token.
        sampling: Sampling parameters for the target. Prompt number n uses seed + n as its seed.
            Penalties and min_tokens are not supported.
        batch: Number of prompts that are answered together and stored in one file; at least 1.

    Raises:
        ConfigError: A value is out of range.
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
            raise ConfigError(
                f"head record: got keep={self.keep}; expected at least 0 and less than 1."
            )
        neutral = {
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "min_tokens": 0,
        }
        for name, off in neutral.items():
            value = getattr(self.sampling, name)
            if value != off:
                raise ConfigError(
                    f"\0head record: {name}\0: got {value}; expected {off}, off. Leave it out."
                )


@dataclass(frozen=True, slots=True)
class TrainConfig(TrainingSettings):
    """Options for training an acceptance head.

    Attributes:
        batch: Number of positions per training step; at least 1.
        lr: Peak learning rate of AdamW; above 0.
        seed: Random seed for the split, weight initialisation and data order.
        note: Text for the card (the head's metadata), such as sources and licences of the prompts.
            Default: none.
        depth: Number of residual blocks, from 0 to 4 (the paper's D).
        reject_weight: Weight of rejected tokens in the loss (the paper's w_rej), relative to
            accepted tokens; above 0.
        scalars: Whether the last layer also uses scalars computed from the draft distribution,
            unlike in the paper.
        epochs: Number of passes over the recordings; at least 1.
        weight_decay: Weight decay of AdamW; at least 0.
        warmup: Share of the steps during which the learning rate increases.
        dev: Share of the prompts used to fit the calibration; from 0 to 0.5.
        held_out: Share of the prompts held out for the report; from 0 to 0.5.

    Raises:
        ConfigError: A value is out of range.
    """

    depth: int = 3
    reject_weight: float = 6.0
    scalars: bool = True
    epochs: int = 10
    weight_decay: float = 0.01
    warmup: float = 0.03
    dev: float = 0.1
    held_out: float = 0.1

    def __post_init__(self) -> None:
        # Imported here: the module imports torch, which help texts do not need.
        from paceline.drafters.specdec_pp.settings import MAX_BLOCKS

        require_range("head train", "depth", self.depth, 0, MAX_BLOCKS)
        minimums = {"epochs": 1, "weight_decay": 0}
        self.require("head train", minimums, positive=("reject_weight",))
        for name in ("warmup", "dev", "held_out"):
            require_range("head train", name, getattr(self, name), 0, 0.5)
