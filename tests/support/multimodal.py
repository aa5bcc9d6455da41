"""Tiny multimodal models with random weights, their engines, prompts and expected answers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from paceline import LLM, MultimodalPrompt
from tests.support.multimodal_configs import CONFIGS, END, IMAGE, START, TEXT_FIELDS
from tests.support.multimodal_processors import processor

RECURRENT = {"qwen3_5", "lfm2_vl"}
NESTED = {"gemma3", "gemma4", "smolvlm"}  # their processors take a list of images for each prompt
CLASSES = sorted(CONFIGS)


@functools.cache
def model(kind: str) -> Any:
    """Return a float32 model in eval mode whose output depends on the images."""
    text, vision, own = CONFIGS[kind]
    config = CONFIG_MAPPING[kind](
        text_config={**TEXT_FIELDS, **text}, vision_config=vision, tie_word_embeddings=False, **own
    )
    torch.manual_seed(0)
    built = AutoModelForImageTextToText.from_config(config).eval().float()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 1 or not parameter.any():  # new biases and norms are constant
                parameter.add_(0.1 * torch.randn_like(parameter))
    return built


def mark_of(kind: str) -> str:
    """Return the placeholder for an image in prompts of a model type."""
    if kind in ("mistral3", "llava", "internvl", "gemma4", "smolvlm", "lfm2_vl"):
        return IMAGE
    return START if kind == "gemma3" else f"{START}{IMAGE}{END}"


def image(seed: int, width: int = 70, height: int = 56) -> Image.Image:
    """Return an image of one colour with some noise."""
    generator = np.random.default_rng(seed)
    colour = generator.integers(0, 190, (1, 1, 3))
    pixels = (colour + generator.integers(0, 65, (height, width, 3))).astype(np.uint8)
    return Image.fromarray(pixels)


def expected(kind: str, text: str, images: list[Image.Image], count: int) -> list[int]:
    """Return the new token ids of `model.generate` for a prompt."""
    features = processor(kind)(text=[text], images=images or None, return_tensors="pt")
    given = {name: value for name, value in features.items() if isinstance(value, torch.Tensor)}
    if not images:
        given = {name: given[name] for name in ("input_ids", "attention_mask")}
    built = model(kind)
    ids = built.generate(**given, max_new_tokens=count, do_sample=False)
    answer: list[int] = ids[0, given["input_ids"].shape[1] :].tolist()
    return answer


def llm_of(kind: str, drafter: str = "prompt_lookup", **options: Any) -> LLM:
    """Return an engine for a tiny model; `options` are those of `LLM`."""
    given = {"batch_invariant": False, **options}
    return LLM(model(kind), drafter, processor=processor(kind), **given)


def prompt(kind: str, seed: int, text: str = "hello hello what") -> MultimodalPrompt:
    """Return a prompt with one image."""
    return MultimodalPrompt(f"{mark_of(kind)} {text}", [image(seed)])
