"""Prompts with videos and audio give the answers of `model.generate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, BatchFeature
from transformers.models.qwen2_audio import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from paceline import LLM, MultimodalPrompt, SamplingParams
from paceline.errors import ConfigError, UnsupportedModelError
from tests.support import multimodal
from tests.support.multimodal import END, IDS, IMAGE, START, VIDEO, image

PARAMS = SamplingParams(12)
TEXT = [70, 71, 72, 70, 71]


class Videos:
    """A processor of videos for Qwen-VL, whose own needs torchvision."""

    video_token = VIDEO
    video_processor = object()

    def __init__(self, splits_frames: bool = False) -> None:
        self.splits_frames = splits_frames
        size = {"patch_size": 14, "min_pixels": 28 * 28, "max_pixels": 56 * 56}
        self.frames = Qwen2VLImageProcessorPil(**size)

    def __call__(self, text: list[str], videos: list[Any], return_tensors: str) -> BatchFeature:
        features = self.frames(images=list(videos[0]), return_tensors=return_tensors)
        _, height, width = features["image_grid_thw"][0].tolist()
        count = len(videos[0])
        frame = height * width // 4
        tokens = START + VIDEO * count * frame + END
        if self.splits_frames:
            tokens = (START + VIDEO * frame + END) * count
        ids = multimodal.tokenizer()([text[0].replace(VIDEO, tokens)], return_tensors="pt")
        return BatchFeature(
            {
                **{name: ids[name] for name in ("input_ids", "attention_mask")},
                "pixel_values_videos": features["pixel_values"],
                "video_grid_thw": torch.tensor([[count, height, width]]),
                "mm_token_type_ids": 2 * (ids["input_ids"] == IDS[VIDEO]).long(),
            }
        )


class Sounds:
    """A processor of audio for a tiny Qwen2-Audio."""

    audio_token = IMAGE
    feature_extractor = object()

    def __call__(self, text: list[str], audio: list[Any], return_tensors: str) -> BatchFeature:
        features = torch.tensor(np.array(audio[0]), dtype=torch.float32).reshape(1, 8, 16)
        ids = multimodal.tokenizer()([text[0].replace(IMAGE, IMAGE * 4)], return_tensors="pt")
        return BatchFeature(
            {
                **{name: ids[name] for name in ("input_ids", "attention_mask")},
                "input_features": features,
                "feature_attention_mask": torch.ones(1, 16, dtype=torch.int64),
            }
        )


def answers(model: Any, processor: Any, prompts: list[MultimodalPrompt]) -> list[list[int]]:
    """Answers of `generate`."""
    found = []
    for prompt in prompts:
        media = {"videos": prompt.videos, "audio": prompt.audio}
        given = {name: list(items) for name, items in media.items() if items}
        inputs = processor([prompt.text], **given, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        found.append(ids[0, inputs["input_ids"].shape[1] :].tolist())
    return found


def test_videos() -> None:
    model, processor = multimodal.model("qwen3_5"), Videos(splits_frames=True)
    prompts = [
        MultimodalPrompt(f"{VIDEO} what", videos=[[image(seed), image(seed + 1)]])
        for seed in (0, 2)
    ]
    expected = answers(model, processor, prompts)
    assert expected[0] != expected[1], "the answers must depend on the videos"
    llm = LLM(model, "prompt_lookup", processor=processor, batch_invariant=False)
    outs = llm.generate([prompts[0], TEXT, prompts[1]], PARAMS)
    assert [outs[0].token_ids, outs[2].token_ids] == expected


def test_videos_whose_times_exceed_the_text_are_refused() -> None:
    """Qwen2.5-VL numbers the first text after a video and later tokens differently."""
    llm = LLM(multimodal.model("qwen2_5_vl"), processor=Videos(), batch_invariant=False)
    prompt = MultimodalPrompt(f"{VIDEO} what", videos=[[image(0), image(1)]])
    with pytest.raises(UnsupportedModelError, match="cannot continue after images"):
        llm.generate([prompt], PARAMS)


def sound_model() -> Any:
    text = {**multimodal._TEXT, "model_type": "qwen2"}
    encoder = {
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "num_mel_bins": 8,
        "max_source_positions": 8,
    }
    config = Qwen2AudioConfig(text_config=text, audio_config=encoder, audio_token_index=IDS[IMAGE])
    torch.manual_seed(0)
    return Qwen2AudioForConditionalGeneration(config).eval()


def test_audio() -> None:
    model, processor = sound_model(), Sounds()
    rng = np.random.default_rng(0)
    prompts = [MultimodalPrompt(f"{IMAGE} what", audio=[rng.normal(size=128)]) for _ in range(2)]
    expected = answers(model, processor, prompts)
    llm = LLM(model, "prompt_lookup", processor=processor, batch_invariant=False)
    outs = llm.generate([prompts[0], TEXT, prompts[1]], PARAMS)
    assert [outs[0].token_ids, outs[2].token_ids] == expected


def test_content_that_the_processor_does_not_take_is_refused() -> None:
    llm = LLM(multimodal.model("qwen2_5_vl"), processor=Videos(), batch_invariant=False)
    with pytest.raises(ConfigError, match="1 audio clip for Qwen2_5"):
        llm.generate([MultimodalPrompt("what", audio=[[0.5] * 128])], PARAMS)


def test_prefix_language_models_are_refused() -> None:
    config = CONFIG_MAPPING["paligemma"](
        text_config={**multimodal._TEXT, "model_type": "gemma"},
        vision_config={**multimodal._VISION, "model_type": "siglip_vision_model"},
        image_token_index=IDS[IMAGE],
        projection_dim=32,
    )
    model = AutoModelForImageTextToText.from_config(config).eval()
    with pytest.raises(UnsupportedModelError, match="sees the whole prompt"):
        LLM(model, "none")
