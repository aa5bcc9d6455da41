"""Define the settings that Token Recycling and `auto` share."""

from __future__ import annotations

from dataclasses import dataclass

# Default of the option `max_frequent_tokens` of prompt_lookup with the budget. A forward pass over
# 16 more tokens took little longer on a CPU with two cores.
MAX_FREQUENT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class SourcePrior:
    """The prior acceptance probability of a draft token, given its sources.

    The sources have a fixed order, and the prior belongs to one source ("this source"). The prior
    odds are a * before ** b * own ** c. Here, `before` stands for the odds according to the earlier
    sources, and `own` for the odds according to this source. A factor is left out if its sources do
    not propose the token.

    Attributes:
        both: (a, b, c) if an earlier source and this source propose the token.
        before: (a, b) if only earlier sources propose the token.
        own: (a, c) if only this source proposes the token.
        trials: Weight of the prior, as a number of trials.
    """

    both: tuple[float, float, float]
    before: tuple[float, float]
    own: tuple[float, float]
    trials: float


# Both priors were fitted to counts on 110 prompts, with SmolLM2-135M and its draft head or draft
# model. The draft head's prior has more trials, since draft models differ more from each other.
DRAFT_HEAD_PRIOR = SourcePrior((4.4, 0.71, 0.83), (0.23, 1.0), (0.84, 1.13), trials=20.0)
DRAFT_MODEL_PRIOR = SourcePrior((1.4, 0.40, 0.64), (0.35, 0.9), (0.35, 0.66), trials=4.0)
# Forced text leaves only the choice of tokens to the target, so other sources count little.
GRAMMAR_PRIOR = SourcePrior((1.0, 0.0, 1.0), (0.2, 1.0), (1.0, 1.0), trials=4.0)
PREDICTION_PRIOR = SourcePrior((1.0, 0.5, 0.5), (1.0, 1.0), (1.0, 1.0), trials=4.0)


@dataclass(frozen=True, slots=True)
class SourceCalibrationSettings:
    """Settings of `SourceCalibration`, based on 110 prompts with SmolLM2-135M.

    Attributes:
        edges: Bounds of the intervals into which probabilities are sorted.
        pair_trials: Weight of the prior that cached distributions and retrieval share, as a number
            of trials.
        trust: Factor for the prior probability of tokens from cached distributions, by the number
            of tokens in the cached context.
        memory: Number of trials with similar probabilities at which the counts of these trials are
            halved, so that newer trials count more.
    """

    edges: tuple[float, ...] = (0.01, 0.03, 0.07, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
    pair_trials: float = 4.0
    trust: tuple[float, ...] = (0.0, 0.6, 0.75, 0.85, 0.9)
    memory: float = 2000.0


@dataclass(frozen=True, slots=True)
class RecyclingSettings:
    """Tree size limits of Token Recycling and `auto` while the draft budget is off.

    The defaults were chosen with SmolLM2-135M, on CPUs with two cores.

    Attributes:
        max_nodes: Maximum number of nodes in a tree.
        max_batch_nodes: Maximum number of nodes in all trees of a batch.
    """

    max_nodes: int = 16
    max_batch_nodes: int = 48


@dataclass(frozen=True, slots=True)
class LengthRuleSettings:
    """Constants for length rules.

    Attributes:
        max_tokens: Maximum number of tokens in a draft if the rule sets no limit.
        entropy_weight: Weight of the entropy in AdaEDL's bound, per nat; from the paper.
    """

    max_tokens: int = 256
    entropy_weight: float = 0.2


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """Settings of the prompt lookup that predicts the tokens of a draft model.

    The defaults were chosen with the draft model of SmolLM2-135M, on CPUs with two cores.

    Attributes:
        lookup_tokens: Maximum number of tokens that one lookup returns.
        min_lookup_ngram: Length of the shortest n-gram to look up, in tokens.
        max_lookup_ngram: Length of the longest n-gram to look up, in tokens.
    """

    lookup_tokens: int = 8
    min_lookup_ngram: int = 1
    max_lookup_ngram: int = 3


@dataclass(frozen=True, slots=True)
class StateFileSettings:
    """Limits on how often the state of a drafter is saved.

    Attributes:
        min_pause_s: Minimum number of seconds between two saves.
        pauses_per_save: Minimum pause between two saves, as a multiple of the duration of a save.
    """

    min_pause_s: float = 10.0
    pauses_per_save: int = 50
