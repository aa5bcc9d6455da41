"""Describe the C structures of llama.cpp, and find the layout that a library uses.

Releases of llama.cpp add and move fields, and the library does not state the version of its header.
`find_layout` therefore chooses the layout that matches the library's default parameters.
"""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_float, c_int32, c_uint32, c_void_p
from typing import Any

from paceline.errors import UnsupportedModelError, install_command
from paceline.llama_cpp.settings import F16, MAX_STRUCTURE_BYTES, MAX_THREADS

Fields = list[tuple[str, Any]]


class RawStructure(ctypes.Structure):
    """The bytes of a structure whose size is unknown, followed by unused bytes.

    Callers pass parameters by value, so a structure that is too long is harmless.
    """

    _fields_ = (("bytes", ctypes.c_ubyte * MAX_STRUCTURE_BYTES),)


class Batch(ctypes.Structure):
    """Rows of one forward pass (`llama_batch`)."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    )


_COUNTS: Fields = [(name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")]
_ROLLBACK: Fields = [("n_rs_seq", c_uint32), ("n_outputs_max", c_uint32)]
_PER_SEQUENCE: Fields = [("n_outputs_max_per_seq", c_uint32)]
_THREADS: Fields = [("n_threads", c_int32), ("n_threads_batch", c_int32)]
_CONTEXT_TYPE: Fields = [("ctx_type", c_int32)]
_TYPES: Fields = [
    (name, c_int32)
    for name in ("rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type")
]
_ROPE: Fields = [
    ("rope_freq_base", c_float),
    ("rope_freq_scale", c_float),
    ("yarn_ext_factor", c_float),
    ("yarn_attn_factor", c_float),
    ("yarn_beta_fast", c_float),
    ("yarn_beta_slow", c_float),
    ("yarn_orig_ctx", c_uint32),
    ("defrag_thold", c_float),
]
_CALLBACKS: Fields = [
    ("cb_eval", c_void_p),
    ("cb_eval_user_data", c_void_p),
    ("type_k", c_int32),
    ("type_v", c_int32),
    ("abort_callback", c_void_p),
    ("abort_callback_data", c_void_p),
]
_FLAGS: Fields = [
    (name, c_bool)
    for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")
]
_SAMPLERS: Fields = [("samplers", c_void_p), ("n_samplers", ctypes.c_size_t)]
_OTHER: Fields = [("ctx_other", c_void_p)]
_NEW_COUNTS = _COUNTS + _ROLLBACK + _PER_SEQUENCE + _THREADS + _CONTEXT_TYPE
_REST = _TYPES + _ROPE + _CALLBACKS

# Known layouts, each named after the first build that is known to use it. In the newest layout, the
# word before the flags is reserved; it keeps its default of zero.
CONTEXT_LAYOUTS: dict[str, Fields] = {
    "b11549": _NEW_COUNTS + _REST + [("reserved", c_void_p)] + _FLAGS + _SAMPLERS + _OTHER,
    "b10605": _NEW_COUNTS + _REST + _FLAGS + _SAMPLERS + _OTHER,
    "2026-06": _COUNTS + _ROLLBACK + _THREADS + _CONTEXT_TYPE + _REST + _FLAGS + _SAMPLERS,
    "2025-10": _COUNTS + _THREADS + _REST + _FLAGS,
}

_DEFAULTS: dict[str, Any] = (
    {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_rs_seq": 0}
    | {name: -1 for name, _ in _TYPES}
    | {"rope_freq_base": 0.0, "rope_freq_scale": 0.0, "yarn_orig_ctx": 0}
    | {f"yarn_{name}": -1.0 for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow")}
    | {"defrag_thold": -1.0, "cb_eval": None, "cb_eval_user_data": None}
    | {"type_k": F16, "type_v": F16, "abort_callback": None, "abort_callback_data": None}
    | {"reserved": None, "embeddings": False, "offload_kqv": True, "no_perf": True}
    | {"op_offload": True, "swa_full": True, "kv_unified": False}
)


def structure(fields: Fields) -> type[ctypes.Structure]:
    """Return a ctypes structure type with the given fields."""
    return type("ContextParameters", (ctypes.Structure,), {"_fields_": fields})


def find_layout(raw: bytes, version: str) -> Fields:
    """Return the fields of the structure for a library's context parameters.

    Args:
        raw: Bytes of the library's default context parameters.
        version: Version of the library, for error messages.
    Raises:
        UnsupportedModelError: No known layout, or more than one, matches the default parameters.
    """
    fitting = [fields for fields in CONTEXT_LAYOUTS.values() if not mismatches(raw, fields)]
    if len(fitting) != 1:
        nearest = min((mismatches(raw, fields) for fields in CONTEXT_LAYOUTS.values()), key=len)
        raise UnsupportedModelError(
            f"llama.cpp {version}: the layout of its parameters is unknown (checked"
            f" {', '.join(CONTEXT_LAYOUTS)}; differs at {', '.join(nearest[:3]) or 'none'})."
            f" Install the extra again: {install_command('llama-cpp')}."
        )
    return fitting[0]


def mismatches(raw: bytes, fields: Fields) -> list[str]:
    """Return the names of fields whose default differs from the expected value."""
    kind = structure(fields)
    values = kind.from_buffer_copy(raw[: ctypes.sizeof(kind)].ljust(ctypes.sizeof(kind), b"\0"))
    expected = _DEFAULTS | {"n_threads_batch": getattr(values, "n_threads", None)}
    wrong = [
        name for name, _ in fields if name in expected and getattr(values, name) != expected[name]
    ]
    return wrong if 1 <= getattr(values, "n_threads", 0) <= MAX_THREADS else [*wrong, "n_threads"]
