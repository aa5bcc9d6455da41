"""Define prompts that contain images, videos and audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError
from paceline.media.images import load_image

PART_TYPES = ("image", "image_url", "video", "audio")  # of messages, besides text


@dataclass(frozen=True, slots=True)
class MultimodalPrompt:
    """A prompt with one placeholder for each image, video or audio clip.

    Use the placeholders of the model's processor, such as `<image>`. `LLM.chat` writes the
    placeholders itself.

    Attributes:
        text: Text with placeholders.
        images: Images in the order of their placeholders: Pillow images, paths, bytes or data
            URLs.
        videos: Videos, each a sequence of images or an array [frames, height, width, 3].
        audio: Audio clips, each an array of samples at the sampling rate that the processor
            expects.
    """

    text: str
    images: Sequence[Any] = ()
    videos: Sequence[Any] = ()
    audio: Sequence[Any] = ()


def read_part(part: Mapping[str, Any], where: str, files: bool) -> dict[str, Any]:
    """Load the content of an image, video or audio part of a message.

    Args:
        part: Part of a message. An image is the value of an `image`, `url` or `path` field, or of
            OpenAI's `image_url` field.
        where: Name of the part in error messages.
        files: Whether the content may be a file path or a Python object, such as a Pillow image, in
            addition to a data URL. Videos and audio require True.
    Returns:
        A part with two fields: `type`, and a field named after the type, with the loaded content.
    Raises:
        ConfigError: The part has the wrong type, or its content cannot be used.
    """
    kind = part.get("type")
    if kind == "image_url":
        value = part.get("image_url")
        url = value.get("url") if isinstance(value, Mapping) else value
        if not isinstance(url, str):
            raise ConfigError(
                f"{where}.image_url: got a {type(url).__name__}; expected {{'url': 'data:...'}}."
            )
        return {"type": "image", "image": load_image(url, f"{where}.image_url", files)}
    if kind == "image":
        names = [name for name in ("image", "url", "path") if part.get(name) is not None]
        if len(names) != 1:
            raise ConfigError(
                f"{where}: got {len(names)} sources of the image; expected one, {{'type': 'image',"
                " 'image': ...}."
            )
        return {"type": "image", "image": load_image(part[names[0]], f"{where}.{names[0]}", files)}
    if kind in ("video", "audio") and files:
        content = part.get(kind)
        loaded = load_video(content, f"{where}.video") if kind == "video" else content
        return {"type": kind, kind: checked_array(loaded, f"{where}.{kind}")}
    raise ConfigError(
        f"{where}: got a part of type {str(kind)[:40]!r}; expected text"
        f"{', image, image_url, video or audio' if files else ' or image_url'}."
    )


def load_video(frames: Any, where: str) -> Any:
    """Load the frames of a video as images; return an array of frames unchanged.

    Raises:
        ConfigError: A frame is not an image.
    """
    if isinstance(frames, list | tuple):
        return [load_image(frame, f"{where}.{index}") for index, frame in enumerate(frames)]
    return frames


def checked_array(content: Any, where: str) -> Any:
    """Check that a video or audio clip is an array, a tensor or a list, and return it.

    Raises:
        ConfigError: The clip has the wrong type, or is empty.
    """
    if isinstance(content, str | bytes) or not hasattr(content, "__len__") or not len(content):
        raise ConfigError(
            f"{where}: got a {type(content).__name__}; expected an array of samples, or a list of"
            " frames. Decode the file first."
        )
    return content
