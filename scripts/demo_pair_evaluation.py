"""Measure how well the draft of scripts/train_demo_pair.py agrees with the target."""

from __future__ import annotations

import math
from typing import Any

import torch
from demo_pair_data import Rollout, clip, encode_chat, roll_out

EVAL_PROMPTS, EVAL_TOKENS, EVAL_CHAIN = 16, 96, 4
EVAL_SETTING = (
    f"greedy, fp32, {EVAL_TOKENS} tokens, end token ignored, chains of {EVAL_CHAIN},"
    f" {EVAL_PROMPTS} prompts a set"
)


def eval_answers(
    target: Any, tokenizer: Any, questions: dict[str, list[str]]
) -> dict[str, list[Rollout]]:
    """Return the target's greedy continuations of evenly spaced questions of each set."""
    answers = {}
    for name, texts in questions.items():
        chosen = [
            texts[i * len(texts) // EVAL_PROMPTS] for i in range(min(EVAL_PROMPTS, len(texts)))
        ]
        prompts = [clip(encode_chat(tokenizer, text)) for text in chosen]
        answers[name] = roll_out(
            target, prompts, EVAL_TOKENS, torch.zeros(len(prompts)), torch.Generator()
        )
    return answers


@torch.no_grad()
def evaluate(draft: Any, answers: dict[str, list[Rollout]]) -> dict[str, dict[str, float]]:
    """Return how often the draft's arg-max equals the target's, and tokens per forward pass.

    While the target accepts a chain, the draft's context is the target's own text. The
    teacher-forced pattern therefore has the accepted counts of greedy speculative decoding. The
    prefill counts as a forward pass.
    """
    figures = {}
    for name, rows in answers.items():
        agreed = tokens = forwards = 0
        for row in rows:
            guesses = (
                draft(input_ids=row.ids[None, :-1]).logits[0, row.prompt_length - 1 :].argmax(-1)
            )
            hits = (guesses == row.ids[row.prompt_length :]).tolist()
            agreed, tokens = agreed + sum(hits), tokens + len(hits)
            position, forwards = 1, forwards + 1
            while position < len(hits):
                chain = [*hits[position : position + EVAL_CHAIN], False]
                position, forwards = position + chain.index(False) + 1, forwards + 1
        figures[name] = {
            "agreement": round(agreed / tokens, 4),
            "tokens_per_forward": round(tokens / forwards, 3),
        }
    return figures


def mean_agreement(figures: dict[str, dict[str, float]]) -> float:
    return math.fsum(row["agreement"] for row in figures.values()) / len(figures)
