"""Part attention: time and error of SDPA's kernels, with known and new numbers of keys.

The shapes are those of a model with 8 billion parameters: 32 query heads and 8 key heads of size
128. The query heads that share a key head are rows of one product, except in "heads", where SDPA
groups them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from gpu_parts.clock import device_ms, wait, wall_ms
from gpu_parts.run import Case, Run, Values, check_device

_QUERY_HEADS, _KEY_HEADS, _DIM = 32, 8, 128
_GROUP = _QUERY_HEADS // _KEY_HEADS
_ALIGNED = 16  # the memory-efficient kernel needs rows of a mask that start at such multiples
_CHOICES = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
_KINDS = ("bool", "additive", "none", "heads")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one call.

    Attributes:
        query: [1, heads, rows, dim].
        key: [1, key heads, keys, dim], a part of a longer cache.
        value: As `key`.
        mask: [1, 1 or heads, rows, keys]; None for none.
        columns: Number of tokens of the query.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    columns: int

    @property
    def grouped(self) -> bool:
        """Return whether SDPA has to repeat the key heads."""
        return self.query.shape[1] != self.key.shape[1]


def cases(run: Run) -> Iterator[Case]:
    """Time SDPA in microseconds.

    The values are the time of a call, the time with a new number of keys, the device time, and
    the error.
    """
    for keys, kind, columns in itertools.product(run.sizes.key_lengths, _KINDS, run.sizes.columns):
        name = f"{keys} keys, mask {kind}, {columns} columns"
        yield Case(name, partial(_measure, run, keys, kind, columns))


def _measure(run: Run, keys: int, kind: str, columns: int) -> Values:
    make = _maker(run, keys, kind, columns)
    inputs = make(keys)
    expected = _reference(inputs)
    result: Values = {"default choice": _choice(inputs)}
    for name, call in _calls(kind, columns).items():
        try:
            output = call(inputs)
            result[name] = {
                "us": 1e3 * wall_ms(partial(call, inputs), run.device, run.sizes.repeats),
                "new_us": 1e3 * _new_lengths(call, make, keys, run),
                "device_us": _scaled(device_ms(partial(call, inputs), run.device, 5)),
                "error": float((output.float() - expected).abs().max()),
            }
        except Exception as error:  # a kernel that this machine or this shape does not have
            check_device(run)
            result[name] = {"fails": str(error).strip().partition("\n")[0][:40]}
    return result


def _maker(run: Run, keys: int, kind: str, columns: int) -> Callable[[int], Inputs]:
    """Return a function that makes inputs for a number of keys, from one cache."""
    generator = torch.Generator(run.device).manual_seed(0)

    def normal(heads: int, rows: int) -> Tensor:
        shape = (1, heads, rows, _DIM)
        return torch.randn(shape, generator=generator, device=run.device, dtype=run.dtype)

    capacity = keys + run.sizes.new_lengths + 1
    cache = normal(_KEY_HEADS, capacity), normal(_KEY_HEADS, capacity)
    heads, rows = (_QUERY_HEADS, columns) if kind == "heads" else (_KEY_HEADS, _GROUP * columns)
    query = normal(heads, rows)

    def make(length: int) -> Inputs:
        mask = None
        if kind in ("bool", "additive"):
            mask = _chain_mask(columns, length, run.device).repeat(1, 1, _GROUP, 1)
        if kind == "additive":
            mask = _additive(mask, run.dtype)
        return Inputs(query, cache[0][:, :, :length], cache[1][:, :, :length], mask, columns)

    return make


def _chain_mask(columns: int, keys: int, device: torch.device) -> Tensor:
    """Return the mask of a chain behind a context: bool [1, 1, columns, keys]."""
    visible = torch.ones(1, 1, columns, keys, dtype=torch.bool, device=device)
    visible[..., keys - columns :] = torch.ones(columns, columns, device=device).tril().bool()
    return visible


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a mask of 0 and -inf for all key heads, whose rows are aligned."""
    assert mask is not None
    *_, rows, keys = mask.shape
    numbers = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    numbers.masked_fill_(~mask, -math.inf)
    aligned = pad(numbers, (0, -keys % _ALIGNED))[..., :keys]
    return aligned.expand(1, _KEY_HEADS, rows, keys)


def _calls(kind: str, columns: int) -> dict[str, Callable[[Inputs], Tensor]]:
    """Return the kernels to time for a kind of mask, by name."""
    calls: dict[str, Callable[[Inputs], Tensor]] = {
        "default": _sdpa,
        "without cudnn": _without_cudnn,
        "cudnn": partial(_forced, SDPBackend.CUDNN_ATTENTION),
        "flash": partial(_forced, SDPBackend.FLASH_ATTENTION),
        "efficient": partial(_forced, SDPBackend.EFFICIENT_ATTENTION),
    }
    if kind in ("none", "heads"):
        calls["direct flash"] = _direct_flash
    if kind in ("none", "additive"):
        calls["direct efficient"] = _direct_efficient
    if kind == "additive" and columns > 1:
        calls["flash context and tree"] = _in_two_parts
    return calls


def _sdpa(inputs: Inputs) -> Tensor:
    output: Tensor = scaled_dot_product_attention(
        inputs.query,
        inputs.key,
        inputs.value,
        attn_mask=inputs.mask,
        enable_gqa=inputs.grouped,
    )
    return output


def _without_cudnn(inputs: Inputs) -> Tensor:
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return _sdpa(inputs)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _forced(backend: SDPBackend, inputs: Inputs) -> Tensor:
    with sdpa_kernel([backend]):
        output: Tensor = _sdpa(inputs)
        return output


def _direct_flash(inputs: Inputs) -> Tensor:
    output: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
        inputs.query, inputs.key, inputs.value
    )[0]
    return output


def _direct_efficient(inputs: Inputs) -> Tensor:
    output: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        inputs.query, inputs.key, inputs.value, inputs.mask, False
    )[0]
    return output


def _in_two_parts(inputs: Inputs) -> Tensor:
    """Run flash attention on the context and masked attention on the tree; merge both."""
    assert inputs.mask is not None
    keys, columns = inputs.key.shape[2], inputs.columns
    context = torch.ops.aten._scaled_dot_product_flash_attention(
        inputs.query, inputs.key[:, :, : keys - columns], inputs.value[:, :, : keys - columns]
    )
    key, value = inputs.key[:, :, keys - columns :], inputs.value[:, :, keys - columns :]
    scores = (inputs.query @ key.transpose(-1, -2)).float() * _DIM**-0.5
    scores += inputs.mask[..., keys - columns :]
    weight = (scores.logsumexp(-1, keepdim=True) - context[1].unsqueeze(-1)).sigmoid()
    tree = scores.softmax(-1).to(value.dtype) @ value
    return torch.lerp(context[0], tree, weight.to(tree.dtype))


def _new_lengths(
    call: Callable[[Inputs], Tensor], make: Callable[[int], Inputs], keys: int, run: Run
) -> float:
    """Return the mean milliseconds of calls that each see one more key than the last."""
    total = 0.0
    for length in range(keys + 1, keys + 1 + run.sizes.new_lengths):
        inputs = make(length)
        wait(run.device)
        start = time.perf_counter()
        call(inputs)
        wait(run.device)
        total += time.perf_counter() - start
    return 1e3 * total / run.sizes.new_lengths


def _reference(inputs: Inputs) -> Tensor:
    """Return the output in float32, [1, heads, rows, dim]."""
    key, value = inputs.key.float(), inputs.value.float()
    if inputs.grouped:
        key, value = key.repeat_interleave(_GROUP, 1), value.repeat_interleave(_GROUP, 1)
    scores = inputs.query.float() @ key.transpose(-1, -2) * _DIM**-0.5
    if inputs.mask is not None:
        mask = inputs.mask
        scores = scores.masked_fill(~mask if mask.dtype == torch.bool else mask < 0, -math.inf)
    output: Tensor = scores.softmax(-1) @ value
    return output


def _choice(inputs: Inputs) -> str:
    """Return the kernel that SDPA chooses."""
    try:
        number = torch._fused_sdp_choice(
            inputs.query,
            inputs.key,
            inputs.value,
            attn_mask=inputs.mask,
            enable_gqa=inputs.grouped,
        )
        return _CHOICES[number]
    except Exception as error:  # a private function, which other versions may not have
        return type(error).__name__


def _scaled(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else 1e3 * milliseconds
