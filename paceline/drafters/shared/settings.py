"""Settings of the calibration that Token Recycling and `auto` share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceCalibrationSettings:
    """Priors of `SourceCalibration`, counted on 110 prompts with SmolLM2-135M.

    A fit (a, b, c) gives the odds a * before ** b * own ** c, where `before` are the odds by the
    other sources. A fit (a, b) has one of the two factors.

    Attributes:
        edges: Edges between the buckets of a probability.
        pair_trials: Number of trials that the prior of a cell counts for.
        head_trials: Number of trials that the prior of a draft-head cell counts for. It is larger,
            since draft models differ more from each other than draft heads.
        trust: Factor of a cached probability, by the tokens of its context.
        head_both: Fit where the other sources and the draft head have the token.
        head_before: Fit where only the other sources have it.
        head_own: Fit where only the draft head has it.
        model_both: Fit where the other sources and the draft model have the token.
        model_before: Fit where only the other sources have it.
        model_own: Fit where only the draft model has it.
        fading: Number of trials after which older counts of a cell count half.
    """

    edges: tuple[float, ...] = (0.01, 0.03, 0.07, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
    pair_trials: float = 4.0
    head_trials: float = 20.0
    trust: tuple[float, ...] = (0.0, 0.6, 0.75, 0.85, 0.9)
    head_both: tuple[float, float, float] = (4.4, 0.71, 0.83)
    head_before: tuple[float, float] = (0.23, 1.0)
    head_own: tuple[float, float] = (0.84, 1.13)
    model_both: tuple[float, float, float] = (1.4, 0.40, 0.64)
    model_before: tuple[float, float] = (0.35, 0.9)
    model_own: tuple[float, float] = (0.35, 0.66)
    fading: float = 2000.0
