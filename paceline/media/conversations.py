"""Render conversations with images, videos and audio as prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from paceline.errors import ConfigError
from paceline.media.processor import MediaProcessor
from paceline.media.prompts import PART_TYPES, read_part
from paceline.text.conversations import (
    render_text,
    rendered_ids,
    template_options,
    with_tools,
)
from paceline.text.messages import Message, checked_messages


def conversation_prompt(
    processor: MediaProcessor,
    tokenizer: Any,
    messages: Any,
    options: Mapping[str, Any] | None,
    endings: Mapping[str, bool | None],
    files: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[int]:
    """Render a conversation with the chat template, and return its token ids.

    If the conversation contains images, videos or audio, the result is an `EncodedPrompt`, which
    also contains their tensors.

    Args:
        processor: Processor, for conversations that contain more than text.
        tokenizer: Tokenizer with a chat template, for conversations that contain only text.
        messages: Messages from the caller.
        options: Additional variables for the chat template.
        endings: Values of `add_generation_prompt` and `continue_final_message` for the chat
            template; None means the default.
        files: Whether images may be file paths or Python objects, such as Pillow images, in
            addition to data URLs. Videos and audio require True.
        tools: Definitions of the tools that the model may call; the caller has validated them.
    Raises:
        ConfigError: The messages cannot be used, or the chat template rejects them.
    """
    where = "messages"
    checked = checked_messages(messages, where, partial(_read, processor, files))
    media = _media_of(checked)
    if not media:
        variables = template_options(checked, options, endings)
        checked, variables = with_tools(tokenizer, checked, variables, tools)
        return rendered_ids(tokenizer, checked, where, variables)
    loaded = processor.processor(where)
    template = loaded if getattr(loaded, "chat_template", None) else tokenizer
    if not getattr(template, "chat_template", None):
        raise ConfigError(
            "messages: got images, but the processor has no chat template. Use generate with a"
            " MultimodalPrompt."
        )
    variables = template_options(checked, options, endings)
    shown, variables = with_tools(template, _without_content(checked), variables, tools)
    text = render_text(template, shown, where, variables)
    bos = getattr(getattr(loaded, "tokenizer", tokenizer), "bos_token", None)
    # As in transformers, no BOS token is added if the template already writes one.
    special = {"add_special_tokens": False} if bos and text.startswith(bos) else {}
    return processor.encode(text, media, where, **special)


def _read(
    processor: MediaProcessor, files: bool, part: Mapping[str, Any], where: str
) -> dict[str, Any]:
    if part.get("type") in PART_TYPES:
        processor.check_model(where)
    return read_part(part, where, files)


def _media_of(messages: Sequence[Message]) -> dict[str, list[Any]]:
    """Group a conversation's images, videos and audio by kind, in order of appearance."""
    media: dict[str, list[Any]] = {}
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] != "text":
                media.setdefault(part["type"], []).append(part[part["type"]])
    return media


def _without_content(messages: Sequence[Message]) -> list[Message]:
    """Copy messages without the content of their image, video and audio parts."""
    return [
        {
            **message,
            "content": [
                part if part["type"] == "text" else {"type": part["type"]}
                for part in message["content"]
            ],
        }
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]
