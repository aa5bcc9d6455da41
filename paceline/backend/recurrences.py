"""Define the interface of recurrences through draft trees, for any device.

Every function takes flat tokens: `TokenTree.columns` says which of them belong to the tree. Other
tokens get zeros. States are float32, or float64 for models in float64. A forward pass never writes
to the stored states. `fold` functions do so at commit, with the same operations in the same order.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from paceline.backend.token_tree import FoldPath, TokenTree


class Convolution(NamedTuple):
    """A causal depthwise convolution.

    Attributes:
        weight: Weights, oldest token first, [channels, size].
        bias: [channels]; None for none.
        activation: Function of the result, "silu" or "" for none.
    """

    weight: Tensor
    bias: Tensor | None
    activation: str


class GatedTokens(NamedTuple):
    """Tokens of a recurrence whose state is a matrix per head, in float32.

    The state becomes S = decay * S + key (x) update, and a token's output is the query's product
    with its own state. Without the delta rule, update = gain * value. With it, update =
    gain * (value - product of the key with decay * S).

    Attributes:
        query: [tokens, groups, rows]; consecutive heads share a group.
        key: Like `query`.
        decay: Factor of the state, [tokens, heads, 1], or [tokens, heads, rows] for one per row.
        value: Any float dtype, [tokens, heads, lanes].
        gain: [tokens, heads].
        skip: Factor of the value that is added to the output, [heads]; None for none.
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
    """Tokens of a selective scan, whose state is a vector per channel, in float32.

    The state becomes S = exp(step * rate) * S + key (x) (step * value).

    Attributes:
        value: Any float dtype, [tokens, channels].
        step: Step sizes, >= 0, [tokens, channels].
        rate: Decay rates, <= 0, [rows, channels].
        key: [tokens, rows].
        query: [tokens, rows].
    """

    value: Tensor
    step: Tensor
    rate: Tensor
    key: Tensor
    query: Tensor


class Steps(NamedTuple):
    """Results of running a recurrence through a tree.

    Attributes:
        output: [tokens, heads, lanes] in the dtype of the value; float32 [tokens, channels] of a
            scan.
        updates: What each token adds to its state, float32 in the shape of `output`.
        after: States after the pending tokens, [requests, ...]; None if they were not requested.
    """

    output: Tensor
    updates: Tensor
    after: Tensor | None


class StepSizes(NamedTuple):
    """Step sizes of a state space, softplus(numbers + bias).

    The limits apply only to some tokens: transformers applies them when it processes a prompt, but
    not when it decodes a token.

    Attributes:
        numbers: [tokens, heads].
        bias: [heads]; None for no bias.
        limits: Smallest and largest step size.
        limited: Whether the limits apply to each token, bool [tokens].
    """

    numbers: Tensor
    bias: Tensor | None
    limits: tuple[float, float]
    limited: Tensor


class Recurrences(Protocol):
    """Define the recurrences that each device's implementation computes."""

    def convolve(
        self, rows: Tensor, convolution: Convolution, tree: TokenTree, held: Tensor
    ) -> Tensor:
        """Compute the causal convolution over each token and its ancestors.

        Args:
            rows: Inputs, [tokens, channels].
            convolution: Weights and activation.
            tree: Tokens of the forward pass.
            held: Last size - 1 inputs of each slot, oldest first, [slots, size - 1, channels].
        Returns:
            [tokens, channels], in the dtype of `rows`.
        """

    def fold_convolution(
        self, rows: Tensor, path: FoldPath, held: Tensor, slots: Tensor, start: Tensor | None
    ) -> None:
        """Append the inputs of a path to the held inputs.

        Args:
            rows: Inputs, [tokens, channels].
            path: Tokens to append.
            held: See `convolve`.
            slots: Slot of each request, int64 [requests].
            start: Inputs before the path, [requests, size - 1, channels]; None means `held`.
        """

    def delta_tokens(
        self,
        states: tuple[Tensor, Tensor, Tensor],
        log_decay: Tensor,
        gain: Tensor,
        normalised: bool,
    ) -> GatedTokens:
        """Prepare the tokens of a gated delta rule for `walk`.

        Args:
            states: Queries and keys [tokens, groups, rows], values [tokens, heads, lanes].
            log_decay: Logarithm of the decay, <= 0, [tokens, heads] or [tokens, heads, rows].
            gain: [tokens, heads].
            normalised: Whether to divide queries and keys by their norm.
        """

    def space_tokens(
        self,
        states: tuple[Tensor, Tensor, Tensor],
        time: StepSizes,
        rate: Tensor,
        skip: Tensor | None,
    ) -> GatedTokens:
        """Prepare the tokens of a state space with one decay rate per head for `walk`.

        Args:
            states: Queries and keys [tokens, groups, rows], values [tokens, heads, lanes].
            time: Step sizes of the heads.
            rate: Decay rates, <= 0, [heads].
            skip: See `GatedTokens`.
        """

    def walk(self, tokens: GatedTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a gated recurrence along the tree, starting from the stored states.

        Args:
            tokens: Tokens of the recurrence.
            tree: Order of the tokens in the forward pass.
            held: Stored states, [slots, heads, rows, lanes].
            wants_after: Whether to return the states after the pending tokens.
        """

    def fold(
        self,
        tokens: GatedTokens,
        updates: Tensor,
        path: FoldPath,
        held: Tensor,
        slots: Tensor,
        start: Tensor | None,
    ) -> None:
        """Advance the stored states along a path.

        Args:
            tokens: Tokens of the walk.
            updates: Updates of the walk.
            path: Tokens to add.
            held: See `walk`.
            slots: Slot of each request, int64 [requests].
            start: States before the path, [requests, ...]; None means the stored states.
        """

    def scan(self, tokens: ScanTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a selective scan along the tree, starting from the stored states.

        Args:
            tokens: Tokens of the scan.
            tree: Order of the tokens in the forward pass.
            held: Stored states, [slots, rows, channels].
            wants_after: Whether to return the states after the pending tokens.
        """

    def fold_scan(
        self,
        tokens: ScanTokens,
        updates: Tensor,
        path: FoldPath,
        held: Tensor,
        slots: Tensor,
        start: Tensor | None,
    ) -> None:
        """Advance the stored states of a scan along a path; see `fold`."""
