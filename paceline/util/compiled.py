"""How hot loops are compiled (numba, cached on disk, free of the interpreter lock), and how their
arrays hold named fields.

An array of records has one class that names its fields, and the dtype that is made of it:

    class Match:
        place: int  # of the token behind it
        length: int  # in tokens

    MATCH = record_dtype(Match)
    matches = np.empty(room, dtype=MATCH)

In compiled code `matches[i].place` is read and written in place, and mypy knows `Records[Match]`;
in Python the same column is `matches["place"]`. A record is a pointer there: fields cost what
columns of a matrix cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.ccallback import CFunc
from numba.core.registry import CPUDispatcher
from numba.core.types.misc import unliteral

from paceline.util.code_cache import CodeCache

# Nobody asks for the address of a function that C could call.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Records(Protocol[R]):
    """An array of records as compiled code sees it."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> R: ...
    def __setitem__(self, index: int, value: R, /) -> None: ...


def record_dtype(fields: type) -> Any:
    """Return the numpy dtype of records that have the annotated fields of a class, in their order.

    Args:
        fields: a class with annotations: `int` (int64), `float` (float64), and for anything else
            `Annotated[kind, dtype]` or, for a small array inside the record, `Annotated[kind,
            dtype, shape]`.
    """
    columns = []
    for name, kind in get_type_hints(fields, include_extras=True).items():
        form = (
            get_args(kind)[1:]
            if get_origin(kind) is Annotated
            else (np.int64 if kind is int else np.float64,)
        )
        columns.append((name, *form))
    return np.dtype(columns, align=True)


def compiled(function: F) -> F:
    """Return `function` as machine code: compiled at its first call, cached on disk, run without
    the interpreter lock.

    numba notices a change of the function's own module only: after changing one that others call,
    touch theirs as well.
    """
    return cast(F, _kept(numba.njit(function, **_OPTIONS)))


class _Kernel(CPUDispatcher):  # type: ignore[misc]
    """Compiles once for a kind of argument, where numba would once more for every constant it is
    called with.
    """

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return what a call from compiled code resolves to."""
        plain = {name: unliteral(kind) for name, kind in dict(kws).items()}
        return super().get_call_template(tuple(unliteral(kind) for kind in args), plain)


def kernel(function: F) -> F:
    """Compile a function that makes no array: like `compiled`, but references to the arrays it is
    given are not counted.

    Counting is atomic and comes with every call and every view; in short functions it takes longer
    than the work. Whoever calls one keeps the arrays alive, which a caller that is `compiled` does.
    """
    return _without_counting(function)


def inlined(function: F) -> F:
    """Compile a `kernel` into whoever calls it, whatever its size: for innermost loops, whose
    registers must outlive a call.

    A tree of many such functions takes minutes to compile.
    """
    return _without_counting(function, forceinline=True)


def _without_counting(function: F, **options: Any) -> F:
    dispatcher = _Kernel(
        function, targetoptions={"nopython": True, "_nrt": False, **_OPTIONS, **options}
    )
    return cast(F, _kept(dispatcher))


def callback(function: Callable[[int], int]) -> CFunc:
    """Return `function`, of an int64, as compiled code that has an `address`; cached like
    `compiled`.
    """
    made = CFunc(function, ((types.int64,), types.int64), {}, {"error_model": "numpy"})
    _kept(made).compile()
    return made


def _kept(made: Any) -> Any:
    """Have numba keep on disk what it compiles."""
    made._cache = CodeCache(made.__wrapped__)
    return made


def _loader(kind: Any, bits: int) -> Any:
    """Return a function: address (int64) -> the value of `kind` there, `bits` wide."""

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
load_int64 = _loader(types.int64, 64)
load_uint8 = _loader(types.uint8, 8)


def _storer(kind: Any, bits: int) -> Any:
    """Return a function (address, value) that writes a value of `kind`, `bits` wide."""

    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(
                arguments[1], builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            )
            return context.get_dummy_value()

        return types.void(types.int64, kind), emit

    return numba.extending.intrinsic(store)


store_uint8 = _storer(types.uint8, 8)


def _fetch_add(typing_context: Any, address: Any) -> Any:
    """Type and emit a function: address -> the int64 there, which is one more afterwards; no two
    threads get the same.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.int64), emit


take_number = numba.extending.intrinsic(_fetch_add)


def _as_pointer(typing_context: Any, address: Any) -> Any:
    """Type and emit a function: address -> the same for `numba.carray`, which makes an array of
    what lies there.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), emit


as_pointer = numba.extending.intrinsic(_as_pointer)
