"""Compile all kernels into the cache next to the source: run every drafter on the demo pair.

    python scripts/compile_kernels.py

`make test` runs this script during the type check, so that test workers need not compile.
"""

from __future__ import annotations

import torch
from transformers.utils import logging

from paceline import LLM, SamplingParams, demo
from paceline.drafters import REGISTRY


def main() -> None:
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    params = [SamplingParams(8), SamplingParams(8, temperature=0.8, top_k=20, top_p=0.9)]
    for dtype in ("float32", "bfloat16"):
        for name, one in REGISTRY.items():
            if name == "state_head":  # needs a head, and compiles nothing that others do not
                continue
            spec = f"{name}:datastore=demo" if one.needs_store else name
            if dtype == "float32" or not one.needs_draft_model:
                draft = demo.DRAFT if one.needs_draft_model else None
                LLM(demo.TARGET, spec, draft, dtype=dtype).generate(
                    ["def add(a, b):", "1, 2, 3, 1, 2, 3, 1,"], params
                )


if __name__ == "__main__":
    main()
