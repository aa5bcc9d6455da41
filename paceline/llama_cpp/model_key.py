"""Compute the key under which measurements of a GGUF model are stored."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from paceline.llama_cpp.gguf_model import GgufModel
from paceline.util.machine import instruction_flags, processor


def gguf_key(model: GgufModel, threads: int, **extra_facts: Any) -> str:
    """Return a checksum of everything on which a model's results and speed depend.

    Args:
        model: The model.
        threads: Number of CPU threads.
        extra_facts: Additional facts on which a measurement depends, as JSON values.
    """
    facts = {
        "processor": [processor(), *instruction_flags()],
        "threads": threads,
        "gpu": model.on_gpu,
        **model.facts(),
        **extra_facts,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
