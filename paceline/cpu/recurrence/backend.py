"""Run the compiled recurrences on tensors.

The recurrences use at most as many threads as torch (`torch.get_num_threads`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.backend.recurrences import (
    Convolution,
    FoldedStates,
    GatedTokens,
    QueryKeyValue,
    ScanTokens,
    Steps,
    StepSizes,
)
from paceline.backend.token_tree import FoldPath, TokenTree
from paceline.cpu.memory import KINDS
from paceline.cpu.recurrence import convolution as convolutions
from paceline.cpu.recurrence import gated, scan
from paceline.cpu.recurrence.state_rows import LANES
from paceline.cpu.recurrence.token_rows import exponentials, float_rows, step_sizes
from paceline.cpu.settings import MIN_SHARED_STEPS, MULTIPLY_ADDS_PER_RECURRENCE_HELPER
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.cpu.thread_team import TeamJob


class CpuRecurrences:
    """Implements `Recurrences` on CPUs with batch-invariant compiled code."""

    def convolve(
        self, rows: Tensor, convolution: Convolution, tree: TokenTree, held: Tensor
    ) -> Tensor:
        """Compute the causal convolution over each token and its ancestors."""
        channels, dtype = rows.shape[1], rows.dtype
        weight = convolution.weight.detach().float().T
        bias = None if convolution.bias is None else convolution.bias.detach().float()
        if channels % WIDTH:
            rows, held, weight = (pad(t, (0, -channels % WIDTH)) for t in (rows, held, weight))
            bias = None if bias is None else pad(bias, (0, -channels % WIDTH))
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        weight, width = weight.contiguous(), rows.shape[1]
        out_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        out = torch.zeros(len(rows), width, dtype=out_dtype)
        values = (
            *tree.addresses(),
            *tree.columns.shape,
            rows.data_ptr(),
            rows.stride(0) * rows.element_size(),
            KINDS[dtype],
            held.data_ptr(),
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            convolution.activation == "silu",
            out.data_ptr(),
            KINDS[out_dtype],
            len(weight),
            width,
            0,
        )
        _run(convolutions.convolve, values, int(tree.lengths.sum()) * weight.numel())
        return out[:, :channels].to(dtype)

    def fold_convolution(self, rows: Tensor, path: FoldPath, states: FoldedStates) -> None:
        """Append the inputs along each request's path to the request's stored inputs."""
        held, slots, start = states
        if start is not None:
            held[slots] = start
        if held.shape[1] and len(path.columns):
            convolutions.append_inputs(
                _bytes(rows.contiguous()), path.columns, path.starts, slots.numpy(), _bytes(held)
            )

    def delta_tokens(
        self, states: QueryKeyValue, log_decay: Tensor, gain: Tensor, normalised: bool
    ) -> GatedTokens:
        """Prepare the inputs of a gated-delta-rule layer for `walk`."""
        query, key, value = states
        decays_rows, size = log_decay.dim() == 3, key.shape[2]
        if decays_rows and key.shape[1] != value.shape[1]:
            times = value.shape[1] // key.shape[1]
            query, key = (rows.repeat_interleave(times, dim=1) for rows in (query, key))
        log_decay = log_decay.float()
        if not decays_rows:
            log_decay = log_decay[..., None]
        elif size % WIDTH:
            log_decay = pad(log_decay, (0, -size % WIDTH))
        return GatedTokens(
            float_rows(query, size**-0.5, normalised),
            float_rows(key, 1.0, normalised),
            exponentials(log_decay),
            value,
            gain.float().contiguous(),
            None,
            is_delta=True,
        )

    def space_tokens(
        self, states: QueryKeyValue, time: StepSizes, rate: Tensor, skip: Tensor | None
    ) -> GatedTokens:
        """Prepare the inputs of a state-space model for `walk`.

        The model has one decay rate per head.
        """
        query, key, value = states
        steps = step_sizes(*time)
        decay = exponentials(steps * rate.float())[..., None]
        skip = None if skip is None else skip.detach().float().contiguous()
        return GatedTokens(
            float_rows(query), float_rows(key), decay, value, steps, skip, is_delta=False
        )

    def walk(self, tokens: GatedTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a gated recurrence along the tree, starting from the stored states."""
        value, lanes = tokens.value, held.shape[3]
        size = value.shape[2]
        if size % LANES:
            value = pad(value, (0, -size % LANES))
        if value.stride(2) != 1:
            value = value.contiguous()
        count, heads, _ = value.shape
        decays_rows = tokens.decay.shape[2] > 1
        read_key = tokens.key * tokens.decay if decays_rows else tokens.key
        out_dtype = torch.bfloat16 if value.dtype == torch.bfloat16 else torch.float32
        output = torch.zeros(count, heads, lanes, dtype=out_dtype)
        updates = torch.empty(count, heads, lanes)
        after = torch.empty(len(tree.slots), *held.shape[1:]) if wants_after else None
        values = (
            *tree.addresses(),
            *tree.columns.shape,
            tokens.query.data_ptr(),
            tokens.key.data_ptr(),
            read_key.data_ptr(),
            tokens.decay.data_ptr(),
            tokens.gain.data_ptr(),
            0 if tokens.skip is None else tokens.skip.data_ptr(),
            value.data_ptr(),
            value.stride(0) * value.element_size(),
            value.stride(1) * value.element_size(),
            KINDS[value.dtype],
            held.data_ptr(),
            0 if after is None else after.data_ptr(),
            output.data_ptr(),
            KINDS[out_dtype],
            updates.data_ptr(),
            *_gated_sizes(tokens, held),
            tokens.is_delta,
            decays_rows,
            tree.order().num_states,
            0,
        )
        _run(gated.walk, values, int(tree.lengths.sum()) * held[0].numel() * 2)
        return Steps(output[..., :size].to(tokens.value.dtype), updates, after)

    def fold(self, tokens: GatedTokens, path: FoldPath, states: FoldedStates) -> None:
        """Advance each request's stored states over the tokens of its path."""
        values = (
            *_path_fields(path, states),
            tokens.key.data_ptr(),
            tokens.decay.data_ptr(),
            tokens.value.data_ptr(),
            *_state_fields(states),
            *_gated_sizes(tokens, states.held),
            tokens.decay.shape[2] > 1,
            0,
        )
        _run(gated.fold, values, len(path.columns) * states.held[0].numel())

    def scan(self, tokens: ScanTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a selective scan along the tree, starting from the stored states."""
        channels, width = tokens.step.shape[1], held.shape[2]
        value = _padded(tokens.value, width)
        output, updates = torch.zeros_like(value), torch.empty_like(value)
        after = torch.empty(len(tree.slots), *held.shape[1:]) if wants_after else None
        step, rate = _padded(tokens.step, width), _padded(tokens.rate, width)
        key, query = tokens.key.float().contiguous(), tokens.query.float().contiguous()
        values = (
            *tree.addresses(),
            *tree.columns.shape,
            step.data_ptr(),
            value.data_ptr(),
            rate.data_ptr(),
            key.data_ptr(),
            query.data_ptr(),
            held.data_ptr(),
            0 if after is None else after.data_ptr(),
            output.data_ptr(),
            updates.data_ptr(),
            held.shape[1],
            width,
            tree.order().num_states,
            0,
        )
        _run(scan.scan, values, int(tree.lengths.sum()) * held[0].numel())
        return Steps(output[:, :channels], updates, after)

    def fold_scan(self, tokens: ScanTokens, path: FoldPath, states: FoldedStates) -> None:
        """Advance each request's stored scan states over the tokens of its path."""
        _, rows, width = states.held.shape
        step, rate = _padded(tokens.step, width), _padded(tokens.rate, width)
        key = tokens.key.float().contiguous()
        values = (
            *_path_fields(path, states),
            step.data_ptr(),
            rate.data_ptr(),
            key.data_ptr(),
            tokens.value.data_ptr(),
            *_state_fields(states),
            rows,
            width,
            0,
        )
        _run(scan.fold_scan, values, len(path.columns) * states.held[0].numel())


CPU_RECURRENCES = CpuRecurrences()


def _path_fields(path: FoldPath, states: FoldedStates) -> tuple[int, ...]:
    """Return the field values of the `PathCall` for a path and states."""
    return states.slots.data_ptr(), *path.addresses, len(states.slots)


def _state_fields(states: FoldedStates) -> tuple[int, int]:
    """Return the addresses of the stored states, and of the states before the path.

    The second address is 0 if the path begins at the stored states.
    """
    return states.held.data_ptr(), 0 if states.start is None else states.start.data_ptr()


def _gated_sizes(tokens: GatedTokens, held: Tensor) -> tuple[int, int, int, int, int]:
    """Return the sizes that the kernels for gated recurrences need.

    Returns:
        Five numbers: heads; groups of heads that share a key; rows of a state matrix; lanes
        (columns) of a state matrix; and vectors per row of a block.
    """
    _, heads, rows, lanes = held.shape
    vectors = gated.MAX_VECTORS if lanes % (gated.MAX_VECTORS * LANES) == 0 else 1
    return heads, tokens.key.shape[1], rows, lanes, vectors


def _padded(rows: Tensor, width: int) -> Tensor:
    """Convert rows to contiguous float32, padded with zeros to `width` elements."""
    return pad(rows.float(), (0, width - rows.shape[-1])).contiguous()


def _bytes(rows: Tensor) -> np.ndarray:
    """View the bytes of a contiguous tensor of any dtype as a numpy array."""
    return rows.view(torch.uint8).numpy()


def _run(job: TeamJob, values: tuple[float, ...], multiply_adds: int) -> None:
    helpers = min(torch.get_num_threads() - 1, multiply_adds // MULTIPLY_ADDS_PER_RECURRENCE_HELPER)
    job.run(values, helpers, multiply_adds < MIN_SHARED_STEPS)
