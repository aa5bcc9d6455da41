"""Settings of the `auto` drafter, with what their values were fitted on."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 256  # maximum value of the option `max_nodes`


@dataclass(frozen=True, slots=True)
class DraftModelGateSettings:
    """Settings of `DraftModelGate`.

    Fitted on SmolLM2-135M with its draft model (110 prompts).

    Attributes:
        prior_gain: Expected gain in tokens per request before any measurement.
        prior_weight: Number of requests that the prior counts for.
        patience: Standard errors added to the mean gain, times step time over draft time; the
            gate adds at least one.
        memory: Number of requests after which older gains count half.
        decay: Weight of earlier steps in the means of times, per step.
        min_pause: Steps between the first two trials while the gate is closed.
        max_pause: Maximum number of steps between two trials.
    """

    prior_gain: float = 1.0
    prior_weight: float = 1.0
    patience: float = 0.15
    memory: float = 400.0
    decay: float = 0.98
    min_pause: int = 16
    max_pause: int = 256


@dataclass(frozen=True, slots=True)
class AutoSettings:
    """Settings of `Auto`, fitted on SmolLM2-135M on CPUs with two cores.

    Attributes:
        retrieved_nodes: Maximum number of nodes that retrieval proposes.
        max_head_tokens: Maximum number of tokens that the draft head predicts.
        head_tokens_with_model: Tokens that the draft head predicts next to a draft model.
        many_nodes: Processed nodes per request from which on it predicts one token more.
        full_head_nodes: Processed nodes per request from which on the head predicts all tokens.
        min_head_nodes: Processed nodes per request from which on it predicts one token.
        head_retry_steps: Steps between two trials of a head that is switched off.
    """

    retrieved_nodes: int = 48
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
        max_nodes: Maximum number of nodes if the draft model's own rule sets no limit.
        max_seed_nodes: Nodes of the other sources that seed the draft, for the whole batch. With
            a root they make a forward pass that costs little more than one over a single token.
        stop_threshold: Summed confidence of the newest nodes below which drafting stops.
        chain_confidence: Confidence in the nodes of a chain, which has no confidences.
    """

    max_nodes: int = 256
    max_seed_nodes: int = 11
    stop_threshold: float = 0.8
    chain_confidence: float = 0.7
