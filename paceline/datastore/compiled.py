"""How the loops of a datastore are compiled: numba, kept on disk, free of the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending
from llvmlite import ir
from numba.core import types

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """`function` as machine code: compiled at its first call, cached beside its module, run without the interpreter lock.

    numba notices a change of the function's own module only: after changing one that others call, touch theirs as well.
    """
    return cast(F, numba.njit(function, nogil=True, cache=True, error_model="numpy"))


def kernel(function: F) -> F:
    """As `compiled`, for functions that make no array: references to the arrays they are given are not counted.

    Counting is atomic and comes with every call and every view; in short functions it takes longer than the work. Whoever calls
    one keeps the arrays alive, which a caller that is `compiled` does.
    """
    return cast(F, numba.njit(function, nogil=True, cache=True, error_model="numpy", _nrt=False, forceinline=True))


def _loader(kind: Any, bits: int) -> Any:
    """A function address (int64) -> the little value of `kind` there, `bits` wide."""

    def load(typing_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer)

        return kind(types.int64), emit

    return numba.extending.intrinsic(load)


load_uint16 = _loader(types.uint16, 16)
load_uint32 = _loader(types.uint32, 32)
load_int32 = _loader(types.int32, 32)
load_uint64 = _loader(types.uint64, 64)
load_uint8 = _loader(types.uint8, 8)


def _storer(kind: Any, bits: int) -> Any:
    """A function (address, value) that writes a value of `kind`, `bits` wide."""

    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            return context.get_dummy_value()

        return types.void(types.int64, kind), emit

    return numba.extending.intrinsic(store)


store_uint8 = _storer(types.uint8, 8)


def _fetch_add(typing_context: Any, address: Any) -> Any:
    """A function address -> the int64 there, which is one more afterwards; no two threads get the same."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.int64), emit


take_number = numba.extending.intrinsic(_fetch_add)
