"""Compare tokens per forward pass in llama.cpp and in transformers, with the same drafters.

    python scripts/llama_cpp_tokens.py MODEL.gguf RESULT.json

Both engines must emit the same texts, which llama.cpp has decoded without drafts. Both verify all
drafts, with the same maximum number of nodes. Drafters still learn from each engine's logits. Draft
heads are off, because llama.cpp does not return the hidden states that they read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline import LLM, SamplingParams, demo
from paceline.report.prompts import load_prompts
from paceline.util.machine import processor
from paceline.util.options import EngineName

KIND = "tokens per forward pass in llama.cpp (1)"
DRAFTERS = ("auto:draft_head=false", "prompt_lookup", "token_recycling")
MAX_NODES, PROMPTS, STRIDE, LENGTH = 8, 12, 2, 32
ENGINES: tuple[EngineName, ...] = ("llama.cpp", "transformers")


class ForcedText:
    """A logits processor that allows only the next token of a text.

    Args:
        tokens: The text's tokens.
        start: Length of the prompt before the text.
    """

    def __init__(self, tokens: Sequence[int], start: int) -> None:
        self._tokens, self._start = tokens, start

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._tokens[ids.shape[1] - self._start]] = 0.0
        return forced


def answered(
    path: str,
    engine: EngineName,
    drafter: str,
    prompts: list[list[int]],
    params: list[SamplingParams],
) -> dict[str, float]:
    """Return the tokens per decoding pass and the number of accepted drafts."""
    llm = LLM(path, drafter, engine=engine, device="cpu", max_batch=1, max_nodes=MAX_NODES)
    outs = llm.generate(prompts, params)
    tokens = sum(len(out.token_ids) - 1 for out in outs)
    passes = sum(out.stats.target_forwards - out.stats.prefill_forwards for out in outs)
    accepted = sum(out.stats.accepted_tokens for out in outs)
    return {"tokens_per_forward": round(tokens / passes, 3), "accepted_tokens": accepted}


def main(path: str, result: str) -> None:
    torch.set_num_threads(1)
    plain = LLM(path, "none", engine="llama.cpp", device="cpu", max_batch=1)
    assert plain.tokenizer is not None
    prompts = [
        plain.tokenizer(prompt.text)["input_ids"] for prompt in load_prompts((), PROMPTS, STRIDE)
    ]
    free = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    texts = [out.token_ids for out in plain.generate(prompts, free)]
    params = [
        SamplingParams(
            max_new_tokens=LENGTH,
            ignore_eos=True,
            logits_processors=(ForcedText(text, len(prompt)),),
        )
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    rows = []
    for drafter in DRAFTERS:
        spec = f"{drafter}{',' if ':' in drafter else ':'}budget=false"
        row: dict[str, Any] = {"drafter": drafter}
        for engine in ENGINES:
            row[engine] = answered(path, engine, spec, prompts, params)
        rows.append(row)
        print(row, flush=True)
    content = {
        "kind": KIND,
        "processor": processor(),
        "library": plain.model.model.library.version,
        "model": Path(str(demo.target_of(path))).name,
        "prompts": len(texts),
        "tokens": LENGTH,
        "max_nodes": MAX_NODES,
        "drafters": rows,
    }
    Path(result).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
