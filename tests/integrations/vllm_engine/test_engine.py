"""Test vLLM's engine with the proposer: outputs equal transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.vllm_engine import HOOK, blocks, offline

COUNTS = [20 + 7 * (index % 12) for index in range(24)]
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
SCHEDULES: dict[str, dict[str, Any]] = {
    "chunked prefill and prefix caching": {
        "max_num_batched_tokens": 48,
        "enable_prefix_caching": True,
    },
    "preemption": {"kv_cache_memory_bytes": blocks(20)},
    "context almost full": {"max_model_len": 192},
}


def cut(references: list[list[int]], longest: int) -> list[list[int]]:
    return [
        reference[: min(count, longest)]
        for reference, count in zip(references, COUNTS, strict=True)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_outputs_equal_transformers(
    schedule: str, model: Path, prompts: list[list[int]], references: list[list[int]]
) -> None:
    ours = {"drafter": "sssd", "length": "full"}
    answers, figures = offline(model, prompts, COUNTS, HOOK, ours, **SCHEDULES[schedule])
    assert answers == cut(references, 100)
    assert figures[ACCEPTED] > 50
    if schedule == "preemption":
        assert figures["vllm:num_preemptions"] > 0


def test_prefix_caching_works_with_drafts(model: Path, prompts: list[list[int]]) -> None:
    """Later requests reuse the cached start of the prompt, and are still drafted for."""
    start = [*prompts[0], *prompts[1], *prompts[2]][:96]
    alike = [[*start, *rest] for rest in (prompts[3][:5], prompts[4][:9], prompts[3][:5])]
    engine = {"enable_prefix_caching": True, "max_num_batched_tokens": 128, "max_num_seqs": 2}
    plain, _ = offline(model, alike, [60] * 3, **engine)
    answers, figures = offline(model, alike, [60] * 3, HOOK, {"length": "full"}, **engine)
    assert answers == plain
    assert figures["vllm:prefix_cache_hits"] >= 96
    assert figures[ACCEPTED] > 0


def test_automatic_draft_lengths_keep_the_outputs(
    model: Path, prompts: list[list[int]], references: list[list[int]]
) -> None:
    answers, _ = offline(model, prompts, COUNTS, HOOK, {"drafter": "prompt_lookup"})
    assert answers == cut(references, 100)


def test_tensor_parallelism_keeps_the_outputs(
    model: Path, prompts: list[list[int]], references: list[list[int]]
) -> None:
    """Every rank is called for drafts; those of the first one are used."""
    some, counts = prompts[:8], COUNTS[:8]
    answers, figures = offline(
        model,
        some,
        counts,
        HOOK,
        {"length": "full"},
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
    )
    assert answers == [
        reference[:count] for reference, count in zip(references[:8], counts, strict=True)
    ]
    assert figures[ACCEPTED] > 0
