"""Define the constants of `auto`, and state which data they were fitted to."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 256  # maximum value of the option `max_nodes`


@dataclass(frozen=True, slots=True)
class DraftModelGateSettings:
    """Settings of `DraftModelGate`.

    The defaults were fitted on SmolLM2-135M with its draft model (110 prompts).

    Attributes:
        prior_gain: Expected gain before any measurement, in tokens per request.
        prior_weight: Weight of the prior, as a number of measured requests.
        patience: Factor that widens the upper confidence bound of the gain. The bound is the mean
            gain plus n standard errors, where n is patience * step time / draft time, but at least
            1.
        memory: Once this many gains have been recorded, the weights of all earlier gains are
            halved, so that later gains count more.
        decay: Factor for the running means of measured times; from 0 to 1. Each new step multiplies
            the weights of all earlier steps by this factor.
        min_pause: Number of steps between the first two trials after the gate has closed.
        max_pause: Maximum number of steps between two trials, unless `trial_share` requires a
            longer pause.
        trial_share: Maximum duration of a trial, as a fraction of the pause after the trial.
        min_step_share: Lower bound on the assumed time of a step without the draft model, as a
            fraction of the draft model's time. The bound prevents an overlong pause after a trial
            that processed a prompt.
    """

    prior_gain: float = 1.0
    prior_weight: float = 1.0
    patience: float = 0.15
    memory: float = 400.0
    decay: float = 0.98
    min_pause: int = 16
    max_pause: int = 256
    trial_share: float = 0.01
    min_step_share: float = 0.01


@dataclass(frozen=True, slots=True)
class AutoSettings:
    """Settings of `Auto`, fitted on SmolLM2-135M on CPUs with two cores.

    Attributes:
        retrieved_nodes: Maximum number of nodes that retrieval proposes per request. If a merged
            tree may have fewer nodes, as in large batches, the limit is the size of the merged
            tree, but at least `min_retrieved_nodes`.
        min_retrieved_nodes: Minimum value to which large batches can lower the limit on retrieved
            nodes. If the node limit of a request is 0, retrieval proposes no nodes.
        max_head_tokens: Maximum number of tokens that the draft head predicts.
        head_tokens_with_model: Number of tokens that the draft head predicts alongside a draft
            model.
        many_nodes: If at least this many nodes per request are verified, the draft head predicts
            one more token alongside a draft model.
        full_head_nodes: If at least this many nodes per request are verified, the draft head
            predicts the maximum number of tokens.
        min_head_nodes: If at least this many nodes per request are verified, the draft head
            predicts one token.
        head_retry_steps: Number of steps between two trials of the draft head while it is switched
            off.
    """

    retrieved_nodes: int = 48
    min_retrieved_nodes: int = 16
    max_head_tokens: int = 16
    head_tokens_with_model: int = 1
    many_nodes: int = 12
    full_head_nodes: float = 3.0
    min_head_nodes: float = 0.5
    head_retry_steps: int = 16


@dataclass(frozen=True, slots=True)
class ModelSourceSettings:
    """Settings of `ModelSource`, fitted on SmolLM2-135M with its draft model.

    Attributes:
        max_nodes: Maximum number of nodes per request. The draft model's drafter may have a lower
            limit.
        max_seed_nodes: Maximum number of nodes from other sources, in the whole batch, that the
            draft model's first forward pass processes together with the root. Such a pass takes
            little longer than a pass over a single token.
        stop_threshold: Drafting stops once the confidences of the newest nodes sum to less than
            this value.
        chain_confidence: Confidence to assume for every node if the draft model's drafter returns a
            chain without confidences.
    """

    max_nodes: int = 256
    max_seed_nodes: int = 11
    stop_threshold: float = 0.8
    chain_confidence: float = 0.7


@dataclass(frozen=True, slots=True)
class GrammarSourceSettings:
    """Settings of `GrammarSource`, which drafts text that the grammar forces.

    Attributes:
        max_tokens: Maximum number of forced tokens to propose per step.
        confidence: Probability that the target splits the forced text into the proposed tokens.
            `auto` assumes this value until it has measured the acceptance rate.
    """

    max_tokens: int = 32
    confidence: float = 0.97


@dataclass(frozen=True, slots=True)
class PredictionSourceSettings:
    """Settings of `PredictionSource`.

    Attributes:
        max_tokens: Maximum number of predicted tokens to propose per step.
        ngram_tokens: Once the answer has departed from the prediction, drafting resumes when this
            many of the answer's newest tokens occur in the prediction.
        confidence: Probability that a predicted token is correct. `auto` assumes this value until
            it has measured the acceptance rate.
    """

    max_tokens: int = 32
    ngram_tokens: int = 3
    confidence: float = 0.9
