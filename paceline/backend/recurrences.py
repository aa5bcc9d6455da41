"""Define the interface of recurrences along draft trees, for any device.

Every function receives the tokens of all requests in one sequence. `TokenTree.columns` lists the
tokens that belong to the tree; the results of all other tokens are zeros. States are float32, or
float64 for models in float64. A forward pass never writes to the stored states. At commit, the
`fold` functions update the stored states with the operations of the forward pass, in the same
order.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from paceline.backend.token_tree import FoldPath, TokenTree

QueryKeyValue = tuple[Tensor, Tensor, Tensor]


class Convolution(NamedTuple):
    """A causal depthwise convolution.

    Attributes:
        weight: Weights, oldest token first, [channels, size].
        bias: Bias, [channels], or None.
        activation: Activation function, "silu" or "" (none).
    """

    weight: Tensor
    bias: Tensor | None
    activation: str


class GatedTokens(NamedTuple):
    """Inputs of a recurrence with one state matrix per head.

    Each token advances the state S of a head, [rows, lanes], and computes an output:

        S = decay * S + outer product of key and update
        output = query @ S + skip * value

    The update depends on the type of the recurrence:

        update = gain * value                          without the delta rule
        update = gain * (value - key @ (decay * S))    with the delta rule

    The inputs have the dtype of the states, unless another dtype is specified.

    Attributes:
        query: Queries, [tokens, groups, rows]; consecutive heads share a group.
        key: Keys, in the shape of `query`.
        decay: Factors applied to the state, [tokens, heads, 1], or [tokens, heads, rows] for one
            factor per row.
        value: Values in any float dtype, [tokens, heads, lanes].
        gain: Factors applied to the update, [tokens, heads].
        skip: Factors by which values are multiplied before they are added to the output, [heads];
            None if no values are added.
        is_delta: Whether the delta rule applies.
    """

    query: Tensor
    key: Tensor
    decay: Tensor
    value: Tensor
    gain: Tensor
    skip: Tensor | None
    is_delta: bool


class ScanTokens(NamedTuple):
    """Inputs of a selective scan with one state vector per channel.

    Each token advances the state S of a channel, [rows], and computes an output:

        S = exp(step * rate) * S + key * step * value
        output = sum of query * S over all rows

    The inputs have the dtype of the states, unless another dtype is specified.

    Attributes:
        value: Values in any float dtype, [tokens, channels].
        step: Step sizes, >= 0, [tokens, channels].
        rate: Decay rates, <= 0, [rows, channels].
        key: Keys, [tokens, rows].
        query: Queries, [tokens, rows].
    """

    value: Tensor
    step: Tensor
    rate: Tensor
    key: Tensor
    query: Tensor


class FoldedStates(NamedTuple):
    """Stored states, which the `fold` functions advance along a path of tokens.

    Attributes:
        held: Stored states, or stored inputs of a convolution, [slots, ...].
        slots: Slot of each request, int64 [requests].
        start: States before the path, [requests, ...]; None means the stored states.
    """

    held: Tensor
    slots: Tensor
    start: Tensor | None


class Steps(NamedTuple):
    """Results of running a recurrence along a tree.

    Attributes:
        output: Outputs, [tokens, heads, lanes], in the dtype of the values; for a scan, float32
            [tokens, channels].
        updates: Update that each token adds to its state, float32, in the shape of `output`.
        after: States after the pending tokens, [requests, ...]; None if they were not requested.
    """

    output: Tensor
    updates: Tensor
    after: Tensor | None


class StepSizes(NamedTuple):
    """Step sizes of a state-space model: softplus(numbers + bias), with limits.

    The limits apply only to some tokens, because transformers applies them in prefill but not in
    decoding.

    Attributes:
        numbers: Step sizes before the bias and softplus, [tokens, heads].
        bias: Bias, [heads], or None.
        limits: Smallest and largest step size.
        limited: Whether the limits apply to each token, bool [tokens].
    """

    numbers: Tensor
    bias: Tensor | None
    limits: tuple[float, float]
    limited: Tensor


class Recurrences(Protocol):
    """Recurrence operations, which each type of device implements."""

    def convolve(
        self, rows: Tensor, convolution: Convolution, tree: TokenTree, held: Tensor
    ) -> Tensor:
        """Compute the causal convolution over each token and its ancestors.

        Args:
            rows: Inputs, [tokens, channels].
            convolution: Weights and activation.
            tree: Tokens of the forward pass, with the predecessor of each.
            held: Last inputs stored for each slot, oldest first, [slots, kernel size - 1,
                channels].
        Returns:
            Outputs, [tokens, channels], in the dtype of `rows`.
        """

    def fold_convolution(self, rows: Tensor, path: FoldPath, states: FoldedStates) -> None:
        """Append the inputs of a path's tokens to the stored inputs.

        Args:
            rows: Inputs, [tokens, channels].
            path: Tokens to append.
            states: Stored inputs, as in `convolve`.
        """

    def delta_tokens(
        self, states: QueryKeyValue, log_decay: Tensor, gain: Tensor, normalised: bool
    ) -> GatedTokens:
        """Prepare the inputs of a gated delta rule for `walk`.

        Args:
            states: Queries and keys [tokens, groups, rows], values [tokens, heads, lanes].
            log_decay: Logarithm of the decay, <= 0, [tokens, heads] or [tokens, heads, rows].
            gain: Factors applied to the update, [tokens, heads].
            normalised: Whether to divide queries and keys by their norms.
        """

    def space_tokens(
        self, states: QueryKeyValue, time: StepSizes, rate: Tensor, skip: Tensor | None
    ) -> GatedTokens:
        """Prepare the inputs of a state-space model for `walk`.

        The model has one decay rate per head.

        Args:
            states: Queries and keys [tokens, groups, rows], values [tokens, heads, lanes].
            time: Step sizes of the heads.
            rate: Decay rates, <= 0, [heads].
            skip: Factors by which values are multiplied before they are added to the output,
                [heads], or None.
        """

    def walk(self, tokens: GatedTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a gated recurrence along the tree, starting from the stored states.

        Args:
            tokens: Inputs of the recurrence.
            tree: Tokens of the forward pass, with the predecessor of each.
            held: Stored states, [slots, heads, rows, lanes].
            wants_after: Whether to return the states after the pending tokens.
        """

    def fold(self, tokens: GatedTokens, path: FoldPath, states: FoldedStates) -> None:
        """Advance the stored states by the tokens of a path.

        Args:
            tokens: Inputs that were passed to `walk`, except that `value` holds the updates that
                `walk` returned.
            path: Tokens to add.
            states: Stored states, as in `walk`.
        """

    def scan(self, tokens: ScanTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a selective scan along the tree, starting from the stored states.

        Args:
            tokens: Inputs of the scan.
            tree: Tokens of the forward pass, with the predecessor of each.
            held: Stored states, [slots, rows, channels].
            wants_after: Whether to return the states after the pending tokens.
        """

    def fold_scan(self, tokens: ScanTokens, path: FoldPath, states: FoldedStates) -> None:
        """Advance the stored states of a scan by the tokens of a path; see `fold`."""
