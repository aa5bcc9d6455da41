"""Tiny multimodal models with random weights, their processors, and images."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import tokenizers
import torch
from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3 import Gemma3Processor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4 import Gemma4Processor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm4v import Glm4vProcessor
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl import InternVLProcessor
from transformers.models.llava import LlavaProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl import Qwen3VLProcessor
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil
from transformers.models.smolvlm import SmolVLMProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.processing_utils import ProcessorMixin

IMAGE, VIDEO, START, END, BREAK = "<image>", "<video>", "<start>", "<end>", "<break>"
_SPECIAL = ["<pad>", "<s>", "</s>", IMAGE, VIDEO, START, END, BREAK]
VOCAB = 256 + len(_SPECIAL)
IDS = {name: index for index, name in enumerate(_SPECIAL)}
SIZE = {"height": 28, "width": 28}
_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "initializer_range": 0.2,
}
_GRID = {"depth": 1, "num_heads": 2, "hidden_size": 32, "out_hidden_size": 32, "patch_size": 14}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SECTIONS = {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}
_GRID_TOKENS = {
    "image_token_id": IDS[IMAGE],
    "video_token_id": IDS[VIDEO],
    "vision_start_token_id": IDS[START],
    "vision_end_token_id": IDS[END],
}
_MARKERS = {"image_start_token_id": IDS[START], "image_end_token_id": IDS[END]}
_GEMMA = {
    "image_token_index": IDS[IMAGE],
    "boi_token_index": IDS[START],
    "eoi_token_index": IDS[END],
    "mm_tokens_per_image": 4,
}
# Model type -> configuration of the text part, the vision part and the model.
_CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": (
        {**_SECTIONS},
        {**_GRID, "window_size": 56, "fullatt_block_indexes": [0], "intermediate_size": 48},
        _GRID_TOKENS,
    ),
    "qwen3_vl": (
        {**_SECTIONS},
        {
            **_GRID,
            "depth": 2,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
            "intermediate_size": 48,
        },
        _GRID_TOKENS,
    ),
    "qwen3_5": (
        {
            "rope_parameters": {**_SECTIONS["rope_parameters"], "partial_rotary_factor": 0.5},
            "head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        {**_GRID, "num_position_embeddings": 16, "intermediate_size": 48},
        _GRID_TOKENS,
    ),
    "glm4v": (
        {"rope_parameters": {**_SECTIONS["rope_parameters"], "partial_rotary_factor": 1.0}},
        {**_GRID, "intermediate_size": 48, "image_size": 28},
        {**_MARKERS, "image_token_id": IDS[IMAGE], "video_token_id": IDS[VIDEO]},
    ),
    "gemma3": (
        {
            "sliding_window": 8,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
        {**_VISION, "model_type": "siglip_vision_model"},
        _GEMMA,
    ),
    "gemma4": (
        {
            "sliding_window": 8,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 16,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "use_bidirectional_attention": "vision",
        },
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "position_embedding_size": 64,
        },
        {**_MARKERS, "image_token_id": IDS[IMAGE], "video_token_id": IDS[VIDEO]},
    ),
    "smolvlm": (
        {"model_type": "llama"},
        {**_VISION, "num_channels": 3},
        {"image_token_id": IDS[IMAGE], "scale_factor": 2, "pad_token_id": 0},
    ),
    "lfm2_vl": (
        {
            "model_type": "lfm2",
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention"] * 2,
            "block_multiple_of": 16,
        },
        {**_VISION, "model_type": "siglip2_vision_model", "num_patches": 16},
        {"image_token_id": IDS[IMAGE], "projector_hidden_size": 32},
    ),
    "mistral3": (
        {"model_type": "mistral"},
        {**_VISION, "model_type": "pixtral", "image_size": 56},
        {"image_token_index": IDS[IMAGE], "spatial_merge_size": 1},
    ),
    "llava": (
        {"model_type": "llama"},
        {**_VISION, "model_type": "clip_vision_model"},
        {"image_token_index": IDS[IMAGE], "vision_feature_layer": -1},
    ),
    "internvl": (
        {"model_type": "qwen2"},
        {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]},
        {"image_token_id": IDS[IMAGE], "image_seq_length": 1},
    ),
}
RECURRENT = {"qwen3_5", "lfm2_vl"}
NESTED = {"gemma3", "gemma4", "smolvlm"}  # their processors take a list of images for each prompt
CLASSES = sorted(_CONFIGS)


@functools.cache
def model(kind: str) -> Any:
    """Return a float32 model in eval mode whose output depends on the images."""
    text, vision, own = _CONFIGS[kind]
    config = CONFIG_MAPPING[kind](
        text_config={**_TEXT, **text}, vision_config=vision, tie_word_embeddings=False, **own
    )
    torch.manual_seed(0)
    built = AutoModelForImageTextToText.from_config(config).eval().float()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 1 or not parameter.any():  # new biases and norms are constant
                parameter.add_(0.1 * torch.randn_like(parameter))
    return built


def tokenizer() -> Any:
    """Return a tokenizer with one token per byte and all special tokens."""
    words = [*_SPECIAL, *sorted(ByteLevel.alphabet())]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({word: index for index, word in enumerate(words)}, [])
    )
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=_SPECIAL[3:],
        chat_template=TEMPLATE,
        extra_special_tokens=_NAMED,
    )


_NAMED = {
    "image_token": IMAGE,
    "boi_token": START,
    "eoi_token": END,
    "video_token": VIDEO,
    "start_image_token": START,
    "end_image_token": END,
    "context_image_token": IMAGE,
}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}{{ MARK }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class _ImagesOnly:
    """Processor mixin without video support, which needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.image_token, self.image_token_id = IMAGE, IDS[IMAGE]
        self.start_image_token, self.end_image_token = START, END
        self.start_image_token_id, self.end_image_token_id = IDS[START], IDS[END]
        self.image_seq_length = 1
        self.video_token, self.video_start_id, self.video_end_id = VIDEO, -1, -1
        self.boi_token, self.eoi_token = START, END
        self.audio_token = self.boa_token = self.eoa_token = "<audio>"
        self.fake_image_token, self.global_image_token, self.image_seq_len = START, BREAK, 1
        self.multimodal_pattern = re.compile(f"(?P<image>{IMAGE})|(?P<video>{VIDEO})")


class _Qwen25(_ImagesOnly, Qwen2_5_VLProcessor):  # type: ignore[misc]
    pass


class _Qwen3(_ImagesOnly, Qwen3VLProcessor):  # type: ignore[misc]
    pass


class _Glm(_ImagesOnly, Glm4vProcessor):  # type: ignore[misc]
    pass


class _Intern(_ImagesOnly, InternVLProcessor):  # type: ignore[misc]
    pass


class _Gemma4(_ImagesOnly, Gemma4Processor):  # type: ignore[misc]
    pass


class _Smol(_ImagesOnly, SmolVLMProcessor):  # type: ignore[misc]
    pass


class _Tiles(ProcessorMixin):  # type: ignore[misc]
    """LFM2-VL prompts with one tile; the original image processor needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str = "") -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token, self.image_token_id = IMAGE, IDS[IMAGE]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **options: Any) -> str:
        height, width = image_inputs["spatial_shapes"][image_idx]
        return START + IMAGE * ((int(height) + 1) // 2 * ((int(width) + 1) // 2)) + END


class _Rows(ProcessorMixin):  # type: ignore[misc]
    """Mistral 3 prompts; the original processor needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str = "") -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token, self.image_token_id = IMAGE, IDS[IMAGE]

    def replace_image_token(self, image_inputs: Any, image_idx: int, **options: Any) -> str:
        height, width = image_inputs["image_sizes"][image_idx]
        return BREAK.join([IMAGE * (int(width) // 14)] * (int(height) // 14)) + END


def processor(kind: str) -> Any:
    """Return the processor of a model type, with a chat template."""
    words, own = tokenizer(), {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    mark = f"{START}{IMAGE}{END}"
    grid = {"patch_size": 14, "min_pixels": 28 * 28, "max_pixels": 56 * 56, **own}
    built: Any
    if kind in ("qwen2_5_vl", "qwen3_vl", "qwen3_5"):
        factory = _Qwen25 if kind == "qwen2_5_vl" else _Qwen3
        built = factory(Qwen2VLImageProcessorPil(**grid), words, "")
    elif kind == "glm4v":
        size = {"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 56 * 56}
        built = _Glm(Glm4vImageProcessorPil(patch_size=14, size=size, **own), words, "")
    elif kind == "gemma3":
        images = Gemma3ImageProcessorPil(size=SIZE, image_seq_length=4, **own)
        built, mark = Gemma3Processor(images, words, image_seq_length=4), START
    elif kind == "gemma4":
        images = Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70, pooling_kernel_size=3)
        built, mark = _Gemma4(images, words, ""), IMAGE
    elif kind == "smolvlm":
        images = SmolVLMImageProcessorPil(
            size={"longest_edge": 28}, max_image_size={"longest_edge": 28}, **own
        )
        built, mark = _Smol(images, words, ""), IMAGE
    elif kind == "lfm2_vl":
        images = Siglip2ImageProcessorPil(patch_size=14, max_num_patches=16, **own)
        built, mark = _Tiles(images, words), IMAGE
    elif kind == "mistral3":
        images = PixtralImageProcessorPil(
            patch_size={"height": 14, "width": 14}, size={"longest_edge": 56}, **own
        )
        built, mark = _Rows(images, words), IMAGE
    elif kind == "llava":
        images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=SIZE, **own)
        built = LlavaProcessor(
            images,
            words,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
        mark = IMAGE
    else:
        images = GotOcr2ImageProcessorPil(size=SIZE, crop_to_patches=False, **own)
        built, mark = _Intern(images, words, ""), IMAGE
    built.chat_template = TEMPLATE.replace("{{ MARK }}", mark)
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
