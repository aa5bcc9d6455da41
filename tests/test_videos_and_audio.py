"""Prompts with videos and audio: outputs equal those of `model.generate`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, BatchFeature
from transformers.models.qwen2_audio import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from paceline import LLM, MultimodalPrompt, SamplingParams
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.integrations.transformers import Strategy
from tests.support import multimodal
from tests.support.multimodal import image
from tests.support.multimodal_configs import (
    END,
    IDS,
    IMAGE,
    START,
    TEXT_FIELDS,
    VIDEO,
    VISION_FIELDS,
)
from tests.support.multimodal_processors import tokenizer

PARAMS = SamplingParams(12)
TEXT = [70, 71, 72, 70, 71]


class VideoProcessor:
    """Video processor for Qwen-VL; the original one needs torchvision."""

    video_token = VIDEO
    video_processor = object()

    def __init__(self, splits_frames: bool = False, seconds: float | None = None) -> None:
        self.splits_frames, self.seconds = splits_frames, seconds
        size = {"patch_size": 14, "min_pixels": 28 * 28, "max_pixels": 56 * 56}
        self.frames = Qwen2VLImageProcessorPil(**size)

    def __call__(self, text: list[str], videos: Sequence[Any], return_tensors: str) -> BatchFeature:
        features = self.frames(images=list(videos[0]), return_tensors=return_tensors)
        _, height, width = features["image_grid_thw"][0].tolist()
        count = len(videos[0])
        frame = height * width // 4
        tokens = START + VIDEO * count * frame + END
        if self.splits_frames:
            tokens = (START + VIDEO * frame + END) * count
        ids = tokenizer()([text[0].replace(VIDEO, tokens)], return_tensors="pt")
        times = {} if self.seconds is None else {"second_per_grid_ts": torch.tensor([self.seconds])}
        return BatchFeature(
            {
                **{name: ids[name] for name in ("input_ids", "attention_mask")},
                **times,
                "pixel_values_videos": features["pixel_values"],
                "video_grid_thw": torch.tensor([[count, height, width]]),
                "mm_token_type_ids": 2 * (ids["input_ids"] == IDS[VIDEO]).long(),
            }
        )


class AudioProcessor:
    """Audio processor for a tiny Qwen2-Audio."""

    audio_token = IMAGE
    feature_extractor = object()

    def __call__(self, text: list[str], audio: list[Any], return_tensors: str) -> BatchFeature:
        features = torch.tensor(np.array(audio[0]), dtype=torch.float32).reshape(1, 8, 16)
        ids = tokenizer()([text[0].replace(IMAGE, IMAGE * 4)], return_tensors="pt")
        return BatchFeature(
            {
                **{name: ids[name] for name in ("input_ids", "attention_mask")},
                "input_features": features,
                "feature_attention_mask": torch.ones(1, 16, dtype=torch.int64),
            }
        )


def answers(model: Any, processor: Any, prompts: list[MultimodalPrompt]) -> list[list[int]]:
    """Return the outputs of `generate`."""
    found = []
    for prompt in prompts:
        media = {"videos": prompt.videos, "audio": prompt.audio}
        given = {name: list(items) for name, items in media.items() if items}
        inputs = processor([prompt.text], **given, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        found.append(ids[0, inputs["input_ids"].shape[1] :].tolist())
    return found


def test_outputs_with_videos_equal_generate() -> None:
    model, processor = multimodal.model("qwen3_5"), VideoProcessor(splits_frames=True)
    prompts = [
        MultimodalPrompt(f"{VIDEO} what", videos=[[image(seed), image(seed + 1)]])
        for seed in (0, 2)
    ]
    expected = answers(model, processor, prompts)
    assert expected[0] != expected[1], "the answers must depend on the videos"
    llm = LLM(model, "prompt_lookup", processor=processor, batch_invariant=False)
    outs = llm.generate([prompts[0], TEXT, prompts[1]], PARAMS)
    assert [outs[0].token_ids, outs[2].token_ids] == expected


TIMES = [None, 0.3, 1.7, 40.0]


@pytest.mark.parametrize("seconds", TIMES)
def test_times_of_videos_may_exceed_the_positions_of_the_text(seconds: float | None) -> None:
    """In Qwen2.5-VL, the text after a video continues from its height or width."""
    model, processor = multimodal.model("qwen2_5_vl"), VideoProcessor(seconds=seconds)
    prompts = [
        MultimodalPrompt(f"hello {VIDEO} {'what ' * count}", videos=[[image(seed), image(1)]])
        for seed, count in ((0, 1), (2, 9))
    ]
    expected = answers(model, processor, prompts)
    llm = LLM(model, "prompt_lookup", processor=processor, batch_invariant=False, keep_prefixes=4)
    outs = llm.generate([prompts[0], TEXT, prompts[1]], PARAMS)
    assert [outs[0].token_ids, outs[2].token_ids] == expected
    text = prompts[0].text + outs[0].text + " and what"
    prompts.append(MultimodalPrompt(text, videos=prompts[0].videos))
    (continued,) = llm.generate([prompts[2]], PARAMS)
    assert continued.token_ids == answers(model, processor, prompts[2:])[0]
    assert continued.stats.cached_tokens > 0
    inputs = processor([prompts[1].text], videos=prompts[1].videos, return_tensors="pt")
    options = {"max_new_tokens": 12, "do_sample": False}
    ids = model.generate(**inputs, **options, custom_generate=Strategy("prompt_lookup"))
    assert ids[0, inputs["input_ids"].shape[1] :].tolist() == expected[1]


def test_times_remain_exact_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(multimodal.model("qwen2_5_vl")).to(torch.bfloat16)
    kind, times = type(model.model), []
    number_positions = kind.get_rope_index

    def record(self: Any, *args: Any, **options: Any) -> Any:
        times.append(options["second_per_grid_ts"].tolist())
        return number_positions(self, *args, **options)

    monkeypatch.setattr(kind, "get_rope_index", record)
    llm = LLM(model, "none", processor=VideoProcessor(seconds=0.3), batch_invariant=False)
    llm.generate([MultimodalPrompt(f"{VIDEO} what", videos=[[image(0)] * 3])], SamplingParams(1))
    assert times
    assert all(each == torch.tensor([0.3]).tolist() for each in times)


def sound_model() -> Any:
    text = {**TEXT_FIELDS, "model_type": "qwen2"}
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


def test_outputs_with_audio_equal_generate() -> None:
    model, processor = sound_model(), AudioProcessor()
    rng = np.random.default_rng(0)
    prompts = [MultimodalPrompt(f"{IMAGE} what", audio=[rng.normal(size=128)]) for _ in range(2)]
    expected = answers(model, processor, prompts)
    llm = LLM(model, "prompt_lookup", processor=processor, batch_invariant=False)
    outs = llm.generate([prompts[0], TEXT, prompts[1]], PARAMS)
    assert [outs[0].token_ids, outs[2].token_ids] == expected


def test_unsupported_content_is_refused() -> None:
    llm = LLM(multimodal.model("qwen2_5_vl"), processor=VideoProcessor(), batch_invariant=False)
    with pytest.raises(ConfigError, match="1 audio clip for Qwen2_5"):
        llm.generate([MultimodalPrompt("what", audio=[[0.5] * 128])], PARAMS)


def test_prefix_language_models_are_refused() -> None:
    config = CONFIG_MAPPING["paligemma"](
        text_config={**TEXT_FIELDS, "model_type": "gemma"},
        vision_config={**VISION_FIELDS, "model_type": "siglip_vision_model"},
        image_token_index=IDS[IMAGE],
        projection_dim=32,
    )
    model = AutoModelForImageTextToText.from_config(config).eval()
    with pytest.raises(UnsupportedModelError, match="sees the whole prompt"):
        LLM(model, "none")
