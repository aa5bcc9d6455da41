"""Compile hot loops with numba, and define arrays of records with named fields.

Compiled code is stored on disk and runs without the interpreter lock. To create an array of
records, define a class that names the fields of a record. `record_dtype` derives the array's dtype
from this class:

    class Match:
        position: int  # position of the token after the match
        length: int  # length of the match, in tokens

    MATCH = record_dtype(Match)
    matches = np.empty(capacity, dtype=MATCH)

Compiled code reads and writes `matches[i].position`. In compiled code, a record is a pointer, so
accessing a field is as fast as accessing an element of a matrix. Python code reads the positions of
all records as `matches["position"]`. For mypy, annotate the array as `Records[Match]`.
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

# No C code calls these functions, so numba need not compile wrappers for C.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {"no_cpython_wrapper": True}  # for functions that Python must not call

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Records(Protocol[R]):
    """Type annotation for an array of records in compiled code."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> R: ...
    def __setitem__(self, index: int, value: R, /) -> None: ...


def record_dtype(fields: type) -> Any:
    """Return a numpy dtype for records with the annotated fields of a class.

    Args:
        fields: Class with annotations: `int` (int64), `float` (float64), `Annotated[kind, dtype]`
            for other number types, and `Annotated[kind, dtype, shape]` for small arrays.
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
    """Compile a function on its first call, and store the code on disk.

    The compiled code runs without the interpreter lock. Stored code becomes outdated when the
    source of the function's module changes. It also becomes outdated when the source changes in a
    module whose functions, records or constants the function uses.
    """
    return cast(F, _stored(numba.njit(function, **_OPTIONS)))


def subroutine(function: F) -> F:
    """Compile a function like `compiled`, but only for calls from compiled code.

    Without a wrapper for Python, the function compiles faster.
    """
    options = {"nopython": True, **_OPTIONS, **_INNER}
    return cast(F, _stored(_Subroutine(function, targetoptions=options)))


class _Subroutine(CPUDispatcher):  # type: ignore[misc]
    """Compiles a function that only compiled code can call."""

    def __call__(self, *arguments: Any) -> Any:
        """Raise a `TypeError`, because Python code must not call a subroutine."""
        raise TypeError(f"{self.__name__} can only be called by compiled code")


class _Kernel(CPUDispatcher):  # type: ignore[misc]
    """Compiles a function once per set of argument types.

    Numba would otherwise compile the function again for each constant that compiled code passes.
    """

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Resolve a call from compiled code, treating constants as ordinary arguments."""
        plain = {name: unliteral(kind) for name, kind in dict(kws).items()}
        return super().get_call_template(tuple(unliteral(kind) for kind in args), plain)


class _InnerKernel(_Subroutine, _Kernel):
    """Compiles a kernel that only compiled code can call."""


def kernel(function: F) -> F:
    """Compile a function without reference counting for arrays.

    Numba counts references atomically at every call and for every view of an array. In a short
    function, the counting takes longer than the actual work. A function without reference counting
    must not allocate arrays, and its callers must keep the arrays alive. Functions compiled with
    `compiled` keep their arrays alive.
    """
    return _without_counting(_InnerKernel, function, _INNER)


def entry_kernel(function: F) -> F:
    """Compile a function as a `kernel` that Python code can also call."""
    return _without_counting(_Kernel, function, {})


def inlined(function: F) -> F:
    """Compile a function as a `kernel`, and always inline it into its callers.

    Inlining keeps values in registers across the calls of an innermost loop. Deep nesting of
    inlined functions makes compilation take minutes.
    """
    return _without_counting(_InnerKernel, function, {**_INNER, "forceinline": True})


def _without_counting(dispatcher: type[_Kernel], function: F, options: dict[str, Any]) -> F:
    options = {"nopython": True, "_nrt": False, **_OPTIONS, **options}
    return cast(F, _stored(dispatcher(function, targetoptions=options)))


def callback(function: Callable[[int], int]) -> CFunc:
    """Compile and store a function with one int64 argument and an int64 result.

    Other compiled code can call the function through the `address` of the returned object.
    """
    compiled_function = CFunc(function, ((types.int64,), types.int64), {}, {"error_model": "numpy"})
    _stored(compiled_function).compile()
    return compiled_function


def _stored(dispatcher: Any) -> Any:
    """Make a dispatcher load and save its compiled code through `CodeCache`."""
    dispatcher._cache = CodeCache(dispatcher.__wrapped__)
    return dispatcher


def _loader(kind: Any, bits: int) -> Any:
    """Return a compiled function that loads a value from an address.

    Args:
        kind: Numba type of the value.
        bits: Width of the value, in bits.
    """

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
    """Return a compiled function (address, value) that stores a value at an address.

    Args:
        kind: Numba type of the value.
        bits: Width of the value, in bits.
    """

    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(
                arguments[1], builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            )
            return context.get_dummy_value()

        return types.void(types.int64, kind), emit

    return numba.extending.intrinsic(store)


store_uint8 = _storer(types.uint8, 8)
store_uint16 = _storer(types.uint16, 16)


def _fetch_add(typing_context: Any, address: Any) -> Any:
    """Emit instructions that increment a counter atomically and return its old value.

    No two threads receive the same value.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.int64), emit


take_number = numba.extending.intrinsic(_fetch_add)


def _as_pointer(typing_context: Any, address: Any) -> Any:
    """Emit instructions that cast an integer address to a pointer for `numba.carray`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), emit


as_pointer = numba.extending.intrinsic(_as_pointer)
