"""Provide additional prompts."""

from __future__ import annotations

import json
import random

from chat_prompts import COUNTS, SUBJECTS, question

from paceline.report.prompts import load_prompts

_SEED = 11


def prompt_texts(count: int) -> list[str]:
    """Return a fixed list of prompts: the embedded prompts, then chats drawn by seed."""
    texts = [prompt.text for prompt in load_prompts()]
    lists, rng = json.loads(SUBJECTS.read_text("utf-8")), random.Random(_SEED)
    while len(texts) < count:
        text = question(rng.choice(list(COUNTS)), lists, [], rng)
        if text not in texts:
            texts.append(text)
    return texts[:count]
