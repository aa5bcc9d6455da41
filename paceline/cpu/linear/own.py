"""Other products in the place of torch's: ours, or torch's with a fixed number of rows. With ours
come our norms.

What only guesses may be made of can have weights of integers besides (`int8`).

A view of a model (`paceline.model.model_view`) puts them in copies of the model's modules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.cpu import amx, avx512_dot
from paceline.cpu.linear import dotted, tiled
from paceline.cpu.linear.call import run_product
from paceline.cpu.linear.int8 import Int8Weight, multiply_int8, suits
from paceline.cpu.linear.kernel import multiply
from paceline.cpu.linear.norms import eps_of, norm, own_norms
from paceline.cpu.memory import KINDS
from paceline.cpu.plain_tensors import PLAIN, is_plain
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.cpu.thread_team import TEAM, TeamJob

ANY = 1 << 40  # rows: no bound
_TORCHS_SHARE = 1 << 15  # numbers that torch's own operations share among threads
# rows that matrix instructions take at once: with more, they take less time than anything else
_TILE = 16
_CREW = 7  # helpers at most: a handful of cores read memory as fast as all of them
_HEAD = (
    16  # times as many outputs as inputs: a vocabulary's head, behind which no operation follows
)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows @ weight.T + bias; each row's bits depend on that row alone.

    Args:
        rows: [..., inner]. weight: [outer, inner], contiguous, on the CPU, of the same dtype. bias:
            [outer].
    """
    outer, inner = weight.shape
    rows, dtype = rows.contiguous(), rows.dtype
    count = rows.numel() // inner
    out = torch.empty(
        *rows.shape[:-1], outer, dtype=dtype if dtype == torch.bfloat16 else torch.float32
    )
    added = None if bias is None else bias.to(torch.float32).contiguous()
    addresses = (
        rows.data_ptr(),
        weight.data_ptr(),
        0 if added is None else added.data_ptr(),
        out.data_ptr(),
    )
    kinds, sizes = (KINDS[dtype], KINDS[out.dtype]), (count, inner, outer)
    run_product(_kernel(dtype, inner, outer), addresses, kinds, sizes)
    return out if out.dtype == dtype else out.to(dtype)


def _kernel(dtype: torch.dtype, inner: int, outer: int) -> TeamJob:
    """Return the compiled product of a shape: always the same one, since their sums have
    different orders.
    """
    if (
        dtype == torch.bfloat16
        and amx.available()
        and inner % tiled.INNER == 0
        and outer % tiled.OUTER == 0
    ):
        return tiled.multiply_tiled
    if (
        dtype == torch.bfloat16
        and avx512_dot.available()
        and inner % dotted.INNER == 0
        and outer % dotted.OUTER == 0
    ):
        return dotted.multiply_dotted
    return multiply


def replaceable(model: PreTrainedModel) -> tuple[nn.Linear, ...]:
    """Return the modules of a model whose products ours can replace."""
    if model.device.type != "cpu":
        return ()
    return tuple(
        one
        for one in model.modules()
        if type(one) is nn.Linear
        and is_plain_product(one)
        and one.weight.dtype in KINDS
        and one.weight.device.type == "cpu"
        and one.weight.is_contiguous()
        and one.weight.shape == (one.out_features, one.in_features)
        and one.in_features % WIDTH == 0
        and one.out_features % WIDTH == 0
    )


def plain_products(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Return the modules of a model that are torch's products and nothing more, on any device."""
    return tuple(
        one for one in model.modules() if type(one) in (nn.Linear, Conv1D) and is_plain_product(one)
    )


def is_plain_product(module: nn.Module) -> bool:
    """Return whether a product is what its class computes, of a weight and a bias that are plain
    tensors.
    """
    held = module._parameters
    whole = type(held) is dict and held.keys() == {"weight", "bias"} and is_plain(held["weight"])
    return whole and (held["bias"] is None or is_plain(held["bias"])) and is_free(module)


def is_free(module: nn.Module) -> bool:
    """Whether nobody else has given it a `forward` of its own."""
    return isinstance(vars(module).get("forward"), ForwardOverride | None)


class ForwardOverride:
    """Replaces `forward` in the copy of a module that a model view holds.

    It reads the weights of the original module at every call: they may have been replaced since.

    Args:
        module: the original module.
        products: the products that apply to it.
    Attributes:
        module, products: as above.
    """

    __slots__ = ("_attributes", "_forward", "module", "products")

    def __init__(self, module: nn.Module, products: Products) -> None:
        self.module, self.products = module, products
        # An attribute of a module takes longer to find than an entry of its dictionary.
        self._attributes = vars(module)
        self._forward: Callable[[nn.Module, Tensor], Tensor] = type(module).forward

    def of(self, module: nn.Module) -> ForwardOverride:
        """Return the same override for another module of the class."""
        return type(self)(module, self.products)


class _LinearOverride(ForwardOverride):
    """Uses our product if the weight and the rows suit it."""

    __slots__ = ("_max_numbers", "_min_numbers")

    def __init__(self, module: nn.Module, products: Products) -> None:
        super().__init__(module, products)
        inner = module.in_features if isinstance(module, nn.Linear) else 0
        self._min_numbers, self._max_numbers = products.least * inner, products.most * inner

    def __call__(self, rows: Tensor) -> Tensor:
        parameters = self._attributes["_parameters"]
        weight, bias = parameters.get("weight"), parameters.get("bias")
        # A weight may have been replaced since, also by one of quantised numbers.
        if (
            self._min_numbers <= rows.numel() <= self._max_numbers
            and type(weight) in PLAIN
            and type(rows) in PLAIN
            and (bias is None or type(bias) in PLAIN)
            and rows.dtype == weight.dtype
            and weight.is_contiguous()
            and not torch.is_grad_enabled()
        ):
            return self.products.product(rows, weight, bias)
        return self._forward(self.module, rows)


class _FixedRowsOverride(ForwardOverride):
    """Uses torch's product, always with the same number of rows."""

    __slots__ = ()

    def __call__(self, rows: Tensor) -> Tensor:
        return _in_pieces(partial(self._forward, self.module), rows, self.products.fixed)


class _NormOverride(ForwardOverride):
    """Uses our norm if the weight and the rows suit it."""

    __slots__ = ("_eps",)

    def __init__(self, module: nn.Module, products: Products) -> None:
        super().__init__(module, products)
        self._eps = eps_of(module) or 0.0

    def __call__(self, rows: Tensor) -> Tensor:
        weight = self._attributes["_parameters"].get("weight")
        if (
            type(weight) in PLAIN
            and type(rows) in PLAIN
            and rows.dtype == weight.dtype
            and not torch.is_grad_enabled()
        ):
            return norm(rows, weight, self._eps)
        return self._forward(self.module, rows)


@dataclass(frozen=True, slots=True)
class Products:
    """Which products of a model are not torch's, or not as torch would make them.

    Attributes:
        modules: whose; none = all are torch's.
        least, most: with so many rows.
        fixed: they are torch's, always of so many rows: more are cut into pieces, and zeros fill up
            the last; 0 = they are ours.
        norms: modules whose norms are ours, with any number of rows.
        in_int8: with up to so many rows weights are integers, where they can be.
    """

    modules: tuple[nn.Module, ...] = ()
    least: int = 1
    most: int = ANY
    fixed: int = 0
    norms: tuple[nn.Module, ...] = ()
    in_int8: int = 0
    _integers: dict[int, tuple[Tensor, Int8Weight | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _kinds: dict[int, type[ForwardOverride]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _max_width: int = field(default=ANY, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.modules:
            return
        self._kinds.update((id(one), _NormOverride) for one in self.norms)
        kind = _FixedRowsOverride if self.fixed else _LinearOverride
        self._kinds.update((id(one), kind) for one in self.modules)
        widths = (
            one.out_features
            for one in self.modules
            if isinstance(one, nn.Linear) and one.out_features < _HEAD * one.in_features
        )
        object.__setattr__(self, "_max_width", max(widths, default=ANY))

    @staticmethod
    def ours(model: PreTrainedModel, least: int = 1, most: int = ANY) -> Products:
        """Return our products, with so many rows, and our norms."""
        modules = replaceable(model)
        return Products(
            modules, least, most, norms=tuple(filter(is_free, own_norms(model))) if modules else ()
        )

    @staticmethod
    def for_guesses(model: PreTrainedModel) -> Products:
        """Return ours for a model that only guesses: the fastest, whatever it does to the
        numbers.
        """
        multiply_int8.prepare()
        return replace(Products.ours(model), in_int8=_TILE if amx.available() else ANY)

    def override(self, module: nn.Module) -> ForwardOverride | None:
        """Return what replaces the `forward` of a module in a model view; None for nothing."""
        kind = self._kinds.get(id(module))
        return None if kind is None or not is_free(module) else kind(module, self)

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows @ weight.T + bias by our products, with weights of integers where these
        are asked for.
        """
        if rows.numel() <= self.in_int8 * rows.shape[-1]:
            found = self._integers.get(id(weight))
            if found is None:  # the weight is kept, so that no other one gets its id
                found = self._integers[id(weight)] = (
                    weight,
                    Int8Weight.of(weight, bias) if suits(weight) else None,
                )
            if found[1] is not None:
                return found[1].product(rows)
        return product(rows, weight, bias)

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows @ weight.T + bias as the modules would make it; `weight` [outer, inner] is
        a part of one of theirs.
        """
        count = rows.numel() // rows.shape[-1]
        ours = (
            self.modules
            and not self.fixed
            and self.least <= count <= self.most
            and weight.shape[0] % WIDTH == 0
        )
        ours = (
            ours
            and type(weight) in PLAIN
            and weight.device.type == "cpu"
            and rows.dtype == weight.dtype
        )
        if ours and weight.is_contiguous() and weight.shape[1] % WIDTH == 0:
            return self.product(rows, weight, bias)
        return torch.nn.functional.linear(rows, weight, bias)

    def helpers(self, rows: int) -> int:
        """Threads that may wait awake in a forward of so many rows: none where torch has work
        for them as well.
        """
        threads = torch.get_num_threads()
        if threads == 1 or self.fixed:
            return 0
        return min(threads - 1, _CREW) if rows * self._max_width < _TORCHS_SHARE else 0

    def thread_team(self, rows: int) -> AbstractContextManager[None]:
        """Return a context in which helper threads share the products of a forward of so many
        rows.
        """
        helpers = self.helpers(rows)
        return TEAM.running(helpers) if helpers else nullcontext()


def _in_pieces(multiply: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    """Multiply `size` rows at a time."""
    flat = rows.reshape(-1, rows.shape[-1])
    filled = pad(flat, (0, 0, 0, -len(flat) % size)).contiguous()
    out = [multiply(filled[at : at + size]) for at in range(0, len(filled), size)]
    whole = out[0] if len(out) == 1 else torch.cat(out)
    return whole[: len(flat)].reshape(*rows.shape[:-1], whole.shape[-1])
