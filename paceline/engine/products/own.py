"""Our products in the place of `nn.Linear`'s, in force in our forwards only, and only in the thread that makes one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.common.lanes import WIDTH
from paceline.common.threads import share
from paceline.engine.attention.invariant import KINDS
from paceline.engine.products.kernel import multiply

ANY = 1 << 40  # rows: no bound
_SHARE = 1 << 21  # multiply-adds that are worth waking a thread for

_under_way = threading.local()
_held: dict[int, int] = {}  # id of the first module -> forwards under way with our products, in any thread
_lock = threading.Lock()


def product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows @ weight.T + bias; each row's bits depend on that row alone.

    Args:
        rows: [..., inner]. weight: [outer, inner], contiguous, on the CPU, of the same dtype. bias: [outer].
    """
    outer, inner = weight.shape
    rows, dtype = rows.contiguous(), rows.dtype
    count = rows.numel() // inner
    out = torch.empty(*rows.shape[:-1], outer, dtype=dtype if dtype == torch.bfloat16 else torch.float32)
    added = None if bias is None else bias.to(torch.float32).contiguous()
    places = rows.data_ptr(), weight.data_ptr(), 0 if added is None else added.data_ptr(), out.data_ptr()
    arguments = *places, KINDS[dtype], KINDS[out.dtype], count, inner, outer, np.zeros(1, dtype=np.int64)
    work = count * inner * outer
    share(multiply, arguments, 0 if work < _SHARE else min(torch.get_num_threads() - 1, work // _SHARE))
    return out if out.dtype == dtype else out.to(dtype)


def replaceable(model: PreTrainedModel) -> tuple[nn.Linear, ...]:
    """Return the modules of a model whose products ours can replace."""
    if model.device.type != "cpu":
        return ()
    return tuple(
        one
        for one in model.modules()
        if type(one) is nn.Linear
        and _is_free(one)
        and one.weight.dtype in KINDS
        and one.weight.device.type == "cpu"
        and one.weight.is_contiguous()
        and one.in_features % WIDTH == 0
        and one.out_features % WIDTH == 0
    )


def _is_free(module: nn.Linear) -> bool:
    """Whether nobody else has given it a `forward` of its own."""
    own = vars(module).get("forward")
    return own is None or getattr(own, "func", None) is _forward


@dataclass(frozen=True, slots=True)
class Products:
    """Which products of a model are ours.

    Attributes:
        modules: whose; none = all are torch's.
        least, most: with so many rows.
    """

    modules: tuple[nn.Linear, ...] = ()
    least: int = 1
    most: int = ANY

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Use them in the forward inside, in this thread.

        Each of the modules has a `forward` of its own meanwhile, as accelerate gives them; other threads get what they
        always got.
        """
        if not self.modules:
            yield
            return
        first = id(self.modules[0])
        with _lock:
            _held[first] = _held.get(first, 0) + 1
            if _held[first] == 1:
                for one in self.modules:
                    vars(one)["forward"] = partial(_forward, one)
        _under_way.products = self
        try:
            yield
        finally:
            _under_way.products = _TORCHS
            with _lock:
                _held[first] -= 1
                if not _held[first]:
                    del _held[first]
                    for one in self.modules:
                        del vars(one)["forward"]


_TORCHS = Products()


def _forward(module: nn.Linear, rows: Tensor) -> Tensor:
    products: Products = getattr(_under_way, "products", _TORCHS)
    inner = module.in_features
    ours = products.modules and products.least * inner <= rows.numel() <= products.most * inner
    if ours and rows.dtype == module.weight.dtype and not torch.is_grad_enabled():
        return product(rows, module.weight, module.bias)
    plain: Callable[[nn.Linear, Tensor], Tensor] = nn.Linear.forward
    return plain(module, rows)
