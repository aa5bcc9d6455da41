"""Test how the layout of llama.cpp's parameters is found; no library is needed."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from paceline.errors import UnsupportedModelError
from paceline.llama_cpp.structures import CONTEXT_LAYOUTS, find_layout, structure

DEFAULTS: dict[str, Any] = (
    {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1}
    | {"n_outputs_max_per_seq": 1, "n_threads": 4, "n_threads_batch": 4}
    | dict.fromkeys(("rope_scaling_type", "pooling_type", "attention_type"), -1)
    | {"flash_attn_type": -1, "defrag_thold": -1.0, "type_k": 1, "type_v": 1}
    | dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor"), -1.0)
    | dict.fromkeys(("yarn_beta_fast", "yarn_beta_slow"), -1.0)
    | dict.fromkeys(("offload_kqv", "no_perf", "op_offload", "swa_full"), True)
)


def defaults(layout: str) -> bytes:
    """Return the bytes of a library with this layout, followed by other memory."""
    fields = CONTEXT_LAYOUTS[layout]
    values: Any = structure(fields)()
    for name, _ in fields:
        if name in DEFAULTS:
            setattr(values, name, DEFAULTS[name])
    return bytes(values) + bytes(range(1, 200))


@pytest.mark.parametrize("layout", CONTEXT_LAYOUTS)
def test_each_layout_is_found(layout: str) -> None:
    assert find_layout(defaults(layout), "test") == CONTEXT_LAYOUTS[layout]


@pytest.mark.parametrize("layout", CONTEXT_LAYOUTS)
def test_unknown_layout_is_refused(layout: str) -> None:
    shifted = defaults(layout)[:12] + bytes(4) + defaults(layout)[12:]
    with pytest.raises(UnsupportedModelError, match="layout of its parameters is unknown"):
        find_layout(shifted, "test")


def test_newest_layout_equals_build_11549() -> None:
    kind: Any = structure(CONTEXT_LAYOUTS["b11549"])
    offsets = {name: getattr(kind, name).offset for name in ("n_threads", "type_k", "kv_unified")}
    assert offsets == {"n_threads": 28, "type_k": 104, "kv_unified": 141}
    assert ctypes.sizeof(kind) == 168
