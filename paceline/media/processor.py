"""Encode texts with images, videos and audio as token ids and tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.media import EncodedPrompt, Media
from paceline.errors import ConfigError, install_command
from paceline.media.images import load_image
from paceline.media.prompts import MultimodalPrompt, checked_array, load_video
from paceline.model.media_prefill import MEDIA_ARGUMENTS, placeholder_ids, takes_media
from paceline.model.sources import checkpoint_source
from paceline.util.plurals import counted

_KINDS = ("image", "video", "audio")
_TYPES = ("token_type_ids", "mm_token_type_ids")  # nonzero for placeholders
_PARTS = {
    "image": ("image_processor",),
    "video": ("video_processor",),
    "audio": ("audio_processor", "feature_extractor"),
}


class MediaProcessor:
    """Encodes prompts for one model with the checkpoint's processor.

    The processor is loaded when the first prompt needs it.

    Args:
        model: Loaded model.
        source: Directory, hub id or processor object. Unless the user named a processor, this is
            the user's `model` argument.
    """

    def __init__(self, model: PreTrainedModel, source: Any) -> None:
        self._model, self._source = model, source
        self._loaded: Any = None if isinstance(source, str | Path | PreTrainedModel) else source

    def check_model(self, where: str) -> None:
        """Check that the model accepts images, videos or audio.

        Args:
            where: Name of the prompt, or of a part of it, in error messages.
        Raises:
            ConfigError: The model accepts only text.
        """
        if not takes_media(self._model):
            raise ConfigError(
                f"{where}: got an image, video or audio for {type(self._model).__name__}, which"
                " reads text only; expected text. Load a multimodal model."
            )

    def processor(self, where: str) -> Any:
        """Return the checkpoint's processor, loading it on first use.

        Args:
            where: Name of the prompt in error messages.
        Raises:
            ConfigError: The model accepts only text, or its processor cannot be loaded.
        """
        self.check_model(where)
        if self._loaded is None:
            if isinstance(self._source, PreTrainedModel):
                raise ConfigError(
                    f"{where}: got an image, video or audio and no processor; expected both. Pass"
                    " processor=... to LLM."
                )
            self._loaded = _load(self._source, where)
        return self._loaded

    def encode_prompt(self, prompt: MultimodalPrompt, where: str) -> EncodedPrompt | str:
        """Return a prompt's token ids and tensors, or its text if it contains only text.

        Args:
            prompt: Prompt to encode.
            where: Name of the prompt in error messages.
        Raises:
            ConfigError: An image, video or audio clip cannot be used, or the placeholders do not
                match the media.
        """
        if not isinstance(prompt.text, str):
            raise ConfigError(
                f"{where}.text: got a {type(prompt.text).__name__}; expected a string."
            )
        for name in ("images", "videos", "audio"):
            given = getattr(prompt, name)
            if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__len__"):
                raise ConfigError(
                    f"{where}.{name}: got a {type(given).__name__}; expected a list. Put it in"
                    " brackets."
                )
        if not (len(prompt.images) or len(prompt.videos) or len(prompt.audio)):
            return prompt.text
        self.processor(where)  # an unsuitable model is reported before a bad file
        loaded = {
            "image": [
                load_image(image, f"{where}.images.{index}")
                for index, image in enumerate(prompt.images)
            ],
            "video": [
                checked_array(
                    load_video(video, f"{where}.videos.{index}"), f"{where}.videos.{index}"
                )
                for index, video in enumerate(prompt.videos)
            ],
            "audio": [
                checked_array(clip, f"{where}.audio.{index}")
                for index, clip in enumerate(prompt.audio)
            ],
        }
        return self.encode(prompt.text, loaded, where)

    def encode(
        self, text: str, media: Mapping[str, Sequence[Any]], where: str, **options: Any
    ) -> EncodedPrompt:
        """Return the token ids and tensors of a text with placeholders.

        Args:
            text: Text with one placeholder per item in `media`.
            media: Loaded content by kind: "image", "video", "audio".
            where: Name of the prompt in error messages.
            options: Further arguments for the processor.
        Raises:
            ConfigError: An image, video or audio clip cannot be used, or the placeholders do not
                match the media.
        """
        processor = self.processor(where)
        given = {kind: list(media.get(kind, ())) for kind in _KINDS}
        for kind, items in given.items():
            self._check_kind(processor, kind, items, where)
            _check_count(processor, kind, items, text, where)
        try:
            features = processor(
                text=[text],
                return_tensors="pt",
                **{_argument(kind): items for kind, items in given.items() if items},
                **options,
            )
        except Exception as error:  # processors check their inputs in many ways
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"{where}: the model's processor rejects it: {reason}. Change the images, or their"
                " placeholders."
            ) from error
        ids = [int(token) for token in features["input_ids"][0]]
        tensors = {
            name: value
            for name, value in features.items()
            if name not in ("input_ids", "attention_mask") and isinstance(value, Tensor)
        }
        if not any(name.startswith(MEDIA_ARGUMENTS) for name in tensors):
            raise ConfigError(
                f"{where}: got no tensor of images, videos or audio from"
                f" {type(processor).__name__}; expected pixel_values or input_features. Use"
                " model.generate for this model."
            )
        return EncodedPrompt(ids, Media.of(ids, tensors, self._end(ids, tensors, where)))

    def _check_kind(self, processor: Any, kind: str, items: Sequence[Any], where: str) -> None:
        if items and not any(getattr(processor, name, None) for name in _PARTS[kind]):
            raise ConfigError(
                f"{where}: got {_noun(kind, len(items))} for {type(self._model).__name__}, whose"
                f" processor takes none; expected other content. Leave {_argument(kind)} out."
            )

    def _end(self, ids: Sequence[int], tensors: Mapping[str, Tensor], where: str) -> int:
        """Return the number of tokens up to and including the last placeholder."""
        placeholders = placeholder_ids(self._model.config)
        ends = [index + 1 for index, token in enumerate(ids) if token in placeholders]
        for name in _TYPES:
            if name in tensors:
                ends += [int(column) + 1 for column in tensors[name][0].nonzero().flatten()]
        if not ends:
            raise ConfigError(
                f"{where}: got no placeholder tokens from the model's processor; expected some for"
                " each image. Check the processor."
            )
        if max(ends) >= len(ids):
            raise ConfigError(
                f"{where}: got a prompt that ends with an image, video or audio; expected text"
                " after it. Add some, such as a question."
            )
        return max(ends)


def _load(source: str | Path, where: str) -> Any:
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(checkpoint_source(source))
    except Exception as error:  # the libraries raise many error types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{where}: cannot load the processor of {str(source)!r}: {reason}. Images need Pillow,"
            " and some processors torchvision. Run: pip install torchvision, and"
            f" {install_command('images')}."
        ) from error


def _check_count(processor: Any, kind: str, items: Sequence[Any], text: str, where: str) -> None:
    token = getattr(processor, f"{kind}_token", None)
    if isinstance(token, str) and text.count(token) != len(items):
        count = text.count(token)
        raise ConfigError(
            f"{where}: got {_noun(kind, len(items))} and {counted(count, 'placeholder')} {token};"
            " expected one placeholder each."
        )


def _argument(kind: str) -> str:
    return kind if kind == "audio" else f"{kind}s"


def _noun(kind: str, count: int) -> str:
    return counted(count, "audio clip" if kind == "audio" else kind)
