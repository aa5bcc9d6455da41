"""Prompts with images: answers equal those of `model.generate`, alone and in batches."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import LLM, MultimodalPrompt, SamplingParams
from tests.support import multimodal
from tests.support.multimodal import CLASSES, expected, image, mark_of

TEXT = "plain text, plain text"
# transformers' processor of GLM-4V passes tensors to numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def llm_of(kind: str, drafter: str = "prompt_lookup", **options: Any) -> LLM:
    return LLM(multimodal.model(kind), drafter, processor=multimodal.processor(kind), **options)


def prompt(kind: str, seed: int, text: str = "hello hello what") -> MultimodalPrompt:
    return MultimodalPrompt(f"{mark_of(kind)} {text}", [image(seed)])


def vision_forwards(kind: str) -> tuple[list[int], Any]:
    """Counts the forward passes of the vision tower; remove the hook afterwards."""
    counts: list[int] = []
    tower = next(
        module
        for name, module in multimodal.model(kind).named_modules()
        if name.split(".")[-1] in ("visual", "vision_tower")
    )
    return counts, tower.register_forward_hook(lambda *_: counts.append(1))


@pytest.mark.parametrize("kind", CLASSES)
def test_answers_equal_generate(kind: str) -> None:
    """Two prompts with images, with text prompts between them, in one batch."""
    prompts: list[Any] = [prompt(kind, 0), TEXT, prompt(kind, 1), TEXT + "!"]
    answers = llm_of(kind).generate(prompts, SamplingParams(20))
    references = [
        expected(kind, entry.text, list(entry.images), 20)
        if isinstance(entry, MultimodalPrompt)
        else expected(kind, entry, [], 20)
        for entry in prompts
    ]
    assert [answer.token_ids for answer in answers] == references
    assert references[0] != references[2], "the answers must depend on the images"
