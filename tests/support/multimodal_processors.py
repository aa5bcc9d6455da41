"""Tokenizer and processors of tiny multimodal models."""

from __future__ import annotations

import re
from typing import Any

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast
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

from tests.support.multimodal_configs import BREAK, END, IDS, IMAGE, SPECIAL, START, VIDEO

SIZE = {"height": 28, "width": 28}


def tokenizer() -> Any:
    """Return a tokenizer with one token per byte and all special tokens."""
    words = [*SPECIAL, *sorted(ByteLevel.alphabet())]
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
        additional_special_tokens=SPECIAL[3:],
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
