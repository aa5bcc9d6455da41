"""Define the settings that Token Recycling and `auto` share."""

from __future__ import annotations

from dataclasses import dataclass

# Default of prompt_lookup's option `max_frequent_tokens` with the draft budget. On a CPU with two
# cores, a forward pass over 16 more tokens took little longer.
MAX_FREQUENT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class SourcePrior:
    """The prior acceptance probability of a draft token, given its sources.

    The sources have a fixed order, and each prior belongs to one of them, here called "this
    source". The prior is expressed as odds; the odds of a probability p are p / (1 - p). `before`
    is the odds according to the earlier sources, and `own` is the odds according to this source:

        prior odds                     sources that propose the token
        ==========================     =====================================
        a * before ** b * own ** c     an earlier source and this source
        a * before ** b                earlier sources only
        a * own ** c                   this source only

    Attributes:
        both: The numbers (a, b, c) in the first formula.
        before: The numbers (a, b) in the second formula.
        own: The numbers (a, c) in the third formula.
        trials: Weight of the prior, as a number of trials.
    """

    both: tuple[float, float, float]
    before: tuple[float, float]
    own: tuple[float, float]
    trials: float


# Both priors were fitted on 110 prompts, with SmolLM2-135M and its draft head or draft model. The
# draft head's prior has a higher weight, because draft heads differ less than draft models.
DRAFT_HEAD_PRIOR = SourcePrior((4.4, 0.71, 0.83), (0.23, 1.0), (0.84, 1.13), trials=20.0)
DRAFT_MODEL_PRIOR = SourcePrior((1.4, 0.40, 0.64), (0.35, 0.9), (0.35, 0.66), trials=4.0)
# A grammar forces the text, and only its tokens are uncertain, so other sources have little weight.
GRAMMAR_PRIOR = SourcePrior((1.0, 0.0, 1.0), (0.2, 1.0), (1.0, 1.0), trials=4.0)
PREDICTION_PRIOR = SourcePrior((1.0, 0.5, 0.5), (1.0, 1.0), (1.0, 1.0), trials=4.0)


@dataclass(frozen=True, slots=True)
class SourceCalibrationSettings:
    """Settings of `SourceCalibration`, based on 110 prompts with SmolLM2-135M.

    Attributes:
        edges: Boundaries between the intervals into which probabilities are grouped.
        pair_trials: Weight of the prior for tokens from cached distributions and retrieval, as a
            number of trials.
        trust: Factors for the prior probabilities of tokens from cached distributions. Factor n
            applies if the cached context has n tokens.
        memory: Once a cell has counted this many trials, its counts are halved, so that newer
            trials have more weight.
    """

    edges: tuple[float, ...] = (0.01, 0.03, 0.07, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
    pair_trials: float = 4.0
    trust: tuple[float, ...] = (0.0, 0.6, 0.75, 0.85, 0.9)
    memory: float = 2000.0


@dataclass(frozen=True, slots=True)
class RecyclingSettings:
    """Limits on tree size for Token Recycling and `auto` if the draft budget is off.

    The defaults were chosen with SmolLM2-135M, on CPUs with two cores.

    Attributes:
        max_nodes: Maximum number of nodes in a tree.
        max_batch_nodes: Maximum total number of nodes in the trees of a batch.
    """

    max_nodes: int = 16
    max_batch_nodes: int = 48


@dataclass(frozen=True, slots=True)
class LengthRuleSettings:
    """Constants of the rules that determine the length of a draft.

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
        lookup_tokens: Maximum number of tokens that a single lookup returns.
        min_lookup_ngram: Length of the shortest n-gram to look up, in tokens.
        max_lookup_ngram: Length of the longest n-gram to look up, in tokens.
    """

    lookup_tokens: int = 8
    min_lookup_ngram: int = 1
    max_lookup_ngram: int = 3


@dataclass(frozen=True, slots=True)
class StateFileSettings:
    """Limits on how often a drafter's state is saved.

    Attributes:
        min_pause_s: Minimum time between two saves, in seconds.
        pauses_per_save: Minimum time between two saves, as a multiple of the duration of a save.
    """

    min_pause_s: float = 10.0
    pauses_per_save: int = 50
