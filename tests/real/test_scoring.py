"""Test prompt log-probabilities and continued messages with SmolLM2 in float32."""

from __future__ import annotations

from typing import Any

import torch

from paceline import LLM, SamplingParams
from tests.engine.test_prompt_logprobs import check_logprobs
from tests.support.real import NEEDS_REAL, Real

pytestmark = NEEDS_REAL

BEGUN: list[dict[str, Any]] = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "My favourite is"},
]


def test_prompt_logprobs_equal_transformers(real: Real) -> None:
    """Prompts of different lengths in one batch, one of them in several chunks."""
    llm = LLM(real.model, "prompt_lookup", tokenizer=real.tokenizer, max_batch=3)
    llm.model.prefill_chunk = 64
    prompts = [*real.prompts.values()][:2]
    prompts.append((prompts[0] + prompts[1])[:150])
    for prompt, out in zip(
        prompts, llm.generate(prompts, SamplingParams(0, prompt_logprobs=3)), strict=True
    ):
        check_logprobs(real.model, prompt, out)


def test_answer_continues_the_message(real: Real) -> None:
    llm = LLM(real.model, "prompt_lookup", tokenizer=real.tokenizer)
    ids = llm.chat_prompt(BEGUN, continue_final_message=True)
    assert real.tokenizer.decode(ids).endswith("<|im_start|>assistant\nMy favourite is")
    out = llm.chat(BEGUN, SamplingParams(8), continue_final_message=True)
    with torch.inference_mode():
        wanted = real.model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[
            0, len(ids) :
        ]
    assert out.token_ids == wanted.tolist()
    parts = [
        BEGUN[0],
        {"role": "assistant", "content": [{"type": "text", "text": "My favourite is"}]},
    ]
    assert llm.chat_prompt(parts, continue_final_message=True) == ids
