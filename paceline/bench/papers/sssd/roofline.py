"""What a forward costs by the roofline model (Marzollo et al. 2024, table 1, figure 3, section 3.2.1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

MATMULS = (nn.Linear, Conv1D)
_GEMM = {"cuda": 8192, "cpu": 1024}  # rows and columns of the product that is timed; the public code has 8192
_ADDED = {"cuda": 1 << 30, "cpu": 1 << 28}  # bytes of each array of the sum that is timed; the public code has 1 GiB
_RUNS = 7


@dataclass(frozen=True, slots=True)
class Peak:
    """What a device can do: FLOP/s in matrix products, and bytes/s of memory traffic."""

    flops: float
    bandwidth: float

    @property
    def ratio(self) -> float:
        """FLOPs that fit into the time one byte takes."""
        return self.flops / self.bandwidth

    @staticmethod
    def measured(device: torch.device, dtype: torch.dtype) -> Peak:
        """Measure it by a large matrix product and a large sum, as the public code does it: best of some runs."""
        size = _GEMM.get(device.type, _GEMM["cpu"])
        count = _ADDED.get(device.type, _ADDED["cpu"]) // dtype.itemsize
        left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
        one, other, out = (torch.ones(count, dtype=dtype, device=device) for _ in range(3))
        product = _fastest(lambda: left @ right, device)
        added = _fastest(lambda: torch.add(one, other, out=out), device)
        return Peak(2 * size**3 / product, 3 * count * dtype.itemsize / added)


ASCEND = Peak(280e12, 0.8e12)  # the paper's device, 910B4


@dataclass(frozen=True, slots=True)
class Matmul:
    """Matrix products of one kind: [tokens, inputs] times [inputs, outputs], `count` of them in the model."""

    name: str
    inputs: int
    outputs: int
    count: int


@dataclass(frozen=True, slots=True)
class Work:
    """One operation of a forward: floating-point operations, bytes read and written, and how often it occurs."""

    name: str
    flops: float
    read: float
    written: float
    count: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / (self.read + self.written)

    def seconds(self, peak: Peak) -> float:
        """Return the seconds of all its occurrences: arithmetic or memory, whichever takes longer."""
        return self.count * max(self.flops / peak.flops, (self.read + self.written) / peak.bandwidth)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes of a model that table 1 asks for.

    Attributes:
        hidden: size of the residual stream. heads, kv_heads, head_size: of attention. width: bytes of a number.
        matmuls: every kind of matrix product, the LM head among them.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    matmuls: tuple[Matmul, ...]

    @staticmethod
    def of(model: PreTrainedModel) -> Shapes:
        """Read the sizes off a model: its linear modules, and the heads of its configuration."""
        config = model.config.get_text_config(decoder=True)
        counts: dict[tuple[str, int, int], int] = {}
        for name, module in model.named_modules():
            if isinstance(module, MATMULS):
                rows, columns = module.weight.shape
                sizes = (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)
                key = (name.rpartition(".")[2], *sizes)
                counts[key] = counts.get(key, 0) + 1
        heads = config.num_attention_heads
        return Shapes(
            config.hidden_size, config.num_hidden_layers, heads, getattr(config, "num_key_value_heads", None) or heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads, model.dtype.itemsize,
            tuple(Matmul(*key, count) for key, count in counts.items()),
        )  # fmt: skip

    def products(self, batch: int, size: int) -> list[Work]:
        """Return the matrix products of a forward over `size` tokens of each of `batch` sequences."""
        tokens = batch * size
        return [
            Work(
                one.name, 2.0 * tokens * one.inputs * one.outputs,
                float(self.width * (tokens * one.inputs + one.inputs * one.outputs)), float(self.width * tokens * one.outputs),
                one.count,
            )
            for one in self.matmuls
        ]  # fmt: skip

    def attention(self, batch: int, size: int, context: int) -> Work:
        """Return the attention of one layer over `context` cached tokens and the new ones; a mask has a byte per pair."""
        flops = 4.0 * batch * size * (size + context) * self.heads * self.head_size
        tokens = 2 * (context + size) * self.kv_heads + size * self.heads
        mask = batch * size * (size + context) if size > 1 else 0
        read = batch * self.head_size * tokens * self.width + mask
        return Work("attention", flops, float(read), float(batch * size * self.heads * self.head_size * self.width), self.layers)

    def seconds(self, batch: int, size: int, context: int, peak: Peak) -> tuple[float, float]:
        """Return the seconds of a forward by the roofline: matrix products, and attention."""
        products = sum(one.seconds(peak) for one in self.products(batch, size))
        return products, self.attention(batch, size, context).seconds(peak)

    def relative(self, batch: int, size: int, context: int, peak: Peak) -> float:
        """Return the time of a forward over that of plain decoding, by the roofline."""
        return sum(self.seconds(batch, size, context, peak)) / sum(self.seconds(batch, 1, context, peak))


LLAMA_2_7B = Shapes(  # the paper's model
    4096, 32, 32, 32, 128, 2,
    (
        *(Matmul(name, 4096, 4096, 32) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        *(Matmul(name, 4096, 11008, 32) for name in ("gate_proj", "up_proj")),
        Matmul("down_proj", 11008, 4096, 32), Matmul("lm_head", 4096, 32000, 1),
    ),
)  # fmt: skip


def free_budget(hidden: int, peak: Peak, width: int = 2) -> float | None:
    """Return the tokens of a forward, b s_q, up to which the products with [hidden, hidden] weights are bound by memory.

    Solves 1 / (width (1 / hidden + 1 / (2 b s_q))) = FLOP/s over bytes/s.

    Args:
        width: bytes of a number.
    Returns:
        None where such products never become bound by arithmetic.
    """
    left = 1 / (width * peak.ratio) - 1 / hidden
    return 1 / (2 * left) if left > 0 else None


def _fastest(call: Callable[[], Any], device: torch.device) -> float:
    times = []
    for _ in range(_RUNS):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return min(times)


def synchronise(device: torch.device) -> None:
    """Wait until an accelerator has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
