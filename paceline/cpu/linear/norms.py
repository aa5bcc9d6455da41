"""Root mean square norms of rows, compiled: torch makes one of seven operations, which take longer
to begin than to do.

    weight * rounded(row / sqrt(mean(row ** 2) + eps))

as transformers has it in all models that go back to Llama's: the mean in float32, the quotient
rounded to the rows' own dtype before it is multiplied. A row's bits depend on that row alone: lane
l of eight adds up the squares of the numbers l, l + 8, ...
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.cpu import simd_f32x8
from paceline.cpu.attention.invariant import KINDS
from paceline.cpu.attention.tiles import BFLOAT16, FLOAT, FLOAT32, load_lanes
from paceline.cpu.plain_tensors import is_plain
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.util.compiled import compiled

_EPS = ("variance_epsilon", "eps")  # what modules call it
# Most that numbers of the same formula differ by, of their size: summed in another order, or
# rounded at another place.
_ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


def norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * rows / sqrt(mean(rows ** 2) + eps), the mean over the last dimension; each
    row's bits depend on it alone.

    Args:
        rows: [..., size], on the CPU, float32 or bfloat16. weight: [size], of the same dtype,
            contiguous.
    """
    rows = rows.contiguous()
    out, size = torch.empty_like(rows), len(weight)
    _normalise(
        rows.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        KINDS[rows.dtype],
        rows.numel() // size,
        size,
        eps,
    )
    return out


def own_norms(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Return the modules of a model that make such norms, which is tried: names and eps are not
    all they differ in.
    """
    return () if model.device.type != "cpu" else tuple(filter(_is_such, model.modules()))


def eps_of(module: nn.Module) -> float | None:
    """Return the number that a norm adds to the mean; None where it names none."""
    given = (vars(module).get(name) for name in _EPS)
    return next((float(one) for one in given if isinstance(one, float)), None)


def _is_such(module: nn.Module) -> bool:
    eps, parameters = eps_of(module), module._parameters
    if (
        eps is None
        or type(parameters) is not dict
        or list(parameters) != ["weight"]
        or list(module.children())
    ):
        return False
    weight = parameters["weight"]
    if weight is None or not is_plain(weight):
        return False
    shaped = (
        weight.dim() == 1
        and len(weight) % WIDTH == 0
        and weight.is_contiguous()
        and weight.device.type == "cpu"
    )
    if not shaped or weight.dtype not in _ROUNDING:
        return False
    # With a mean of its own, which others take off first, and once so small that eps counts.
    rows = (
        torch.linspace(-1.0, 3.0, len(weight)).roll(len(weight) // 3)
        * torch.tensor([[1.0], [eps**0.5]])
    ).to(weight.dtype)
    try:
        with torch.inference_mode():
            theirs: Any = type(module).forward(module, rows)
            mine, most = norm(rows, weight.detach(), eps), _ROUNDING[weight.dtype]
            alike = theirs.shape == mine.shape and theirs.dtype == mine.dtype
            return alike and bool(((theirs - mine).abs() <= most * theirs.abs()).all())
    except Exception:  # a norm that takes more than rows, or whatever is one only by its attributes
        return False


@compiled
def _normalise(
    rows: int, weight: int, out: int, kind: int, count: int, size: int, eps: float
) -> None:
    """Write `count` rows. All places are addresses, numbers stored as `kind` says."""
    each = FLOAT if kind == FLOAT32 else FLOAT // 2
    for row in range(count):
        source, target = rows + row * size * each, out + row * size * each
        squares = simd_f32x8.splat(np.float32(0.0))
        for place in range(0, size * each, WIDTH * each):
            some = load_lanes(kind, source + place)
            squares = simd_f32x8.fused(some, some, squares)
        mean = simd_f32x8.total(squares) / np.float32(size)
        scale = simd_f32x8.splat(np.float32(1.0) / np.sqrt(mean + np.float32(eps)))
        for place in range(0, size * each, WIDTH * each):
            some = simd_f32x8.multiply(load_lanes(kind, source + place), scale)
            if kind == BFLOAT16:
                some = simd_f32x8.multiply(
                    simd_f32x8.to_bfloat16(some), simd_f32x8.load_bfloat16(weight + place)
                )
                simd_f32x8.store_bfloat16(target + place, some)
            else:
                simd_f32x8.store(
                    target + place, simd_f32x8.multiply(some, simd_f32x8.load(weight + place))
                )
