"""Render chat messages with a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any

from paceline.errors import ConfigError
from paceline.text.messages import Message, checked_messages, show, text_of
from paceline.text.tool_messages import has_calls, with_written_tools

_MARK = "QUESTION"  # placeholder question that shows how a template writes contents
_NO_PARAMETERS = {"type": "object", "properties": {}, "required": []}
_ENDINGS = ("add_generation_prompt", "continue_final_message")


def chat_ids(
    tokenizer: Any,
    messages: Any,
    where: str,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
) -> list[int]:
    """Check a conversation, and encode it as a prompt with the chat template.

    Args:
        tokenizer: Tokenizer with a chat template. If `tokenizer` is None, the function raises an
            error.
        messages: Messages of the conversation, in the format that `checked_messages` accepts.
        where: Name of the message list in error messages.
        chat_template_kwargs: Variables to pass to the chat template, such as enable_thinking. They
            may include `add_generation_prompt` and `continue_final_message`.
        add_generation_prompt: Whether the prompt ends with the start of the assistant's turn.
            Default: True, unless `continue_final_message` is true.
        continue_final_message: Whether the prompt ends with the assistant's final message, so that
            the answer continues this message. Default: False.
    Returns:
        Token ids of the prompt.
    Raises:
        ConfigError: A message is invalid, or a template variable has the same name as an argument
            of `apply_chat_template`. Also raised if the tokenizer has no chat template, or if the
            template rejects the conversation.
    """
    checked = checked_messages(messages, where)
    endings = dict(zip(_ENDINGS, (add_generation_prompt, continue_final_message), strict=True))
    options = template_options(checked, chat_template_kwargs, endings)
    return rendered_ids(tokenizer, checked, where, options)


def with_tools(
    template: Any,
    messages: list[Message],
    options: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] | None,
) -> tuple[list[Message], dict[str, Any]]:
    """Add tool definitions to the template options, or to the messages as text.

    If the chat template renders tool definitions, the function passes them as the option `tools`.
    Otherwise, it writes the definitions, the tool calls and the tool results into the messages.

    Args:
        template: Tokenizer or processor with a chat template.
        messages: Messages from `checked_messages`.
        options: Arguments for `apply_chat_template`, from `template_options`.
        tools: Checked tool definitions. None means no tools.
    Returns:
        The messages and the template options, both ready for the chat template.
    Raises:
        ConfigError: The messages contain images or other media, and the chat template does not
            support tools.
    """
    if not tools and (_reads_calls(template) or not any(map(has_calls, messages))):
        return messages, dict(options)
    if _reads_tools(template):
        return messages, {**options, **({"tools": list(tools)} if tools else {})}
    contents = [message["content"] for message in messages]
    if any(part["type"] != "text" for content in contents for part in _parts(content)):
        raise ConfigError(
            "tools: the model's chat template does not support tools, and the messages contain"
            " images. Leave out the tools or the images."
        )
    texts = [{**message, "content": text_of(message)} for message in messages]
    return with_written_tools(texts, tools or ()), dict(options)


def _parts(content: Any) -> Sequence[Mapping[str, Any]]:
    return content if isinstance(content, list) else ()


def rendered_ids(
    tokenizer: Any, messages: list[Message], where: str, options: Mapping[str, Any]
) -> list[int]:
    """Render messages that contain only text, and return the token ids.

    Args:
        tokenizer: Tokenizer with a chat template.
        messages: Messages from `checked_messages`.
        where: Name of the message list in error messages.
        options: Arguments for `apply_chat_template`, from `template_options`.
    Raises:
        ConfigError: The tokenizer has no chat template, or the template rejects the conversation.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "got a conversation, but the tokenizer has no chat template. Use generate with a"
            " plain prompt."
        )
    ids = _templated(tokenizer, messages, where, return_dict=False, **options)
    return [int(token) for token in ids]


def render_text(
    template: Any, messages: list[Message], where: str, options: Mapping[str, Any]
) -> str:
    """Render messages as text with a chat template.

    Args:
        template: Tokenizer or processor with a chat template.
        messages: Messages from `checked_messages`.
        where: Name of the message list in error messages.
        options: Arguments for `apply_chat_template`, from `template_options`.
    Raises:
        ConfigError: The chat template rejects the conversation.
    """
    return str(_templated(template, messages, where, tokenize=False, **options))


def chat_text(tokenizer: Any, messages: Any, where: str) -> str:
    """Check a conversation, and render it as text with the default template options.

    Args:
        tokenizer: Tokenizer with a chat template.
        messages: Messages of the conversation, in the format that `checked_messages` accepts.
        where: Name of the message list in error messages.
    Raises:
        ConfigError: A message is invalid, or the chat template rejects the conversation.
    """
    return render_text(tokenizer, checked_messages(messages, where), where, {})


def around_question(tokenizer: Any, where: str) -> tuple[str, str]:
    """Return the text that a chat template writes before and after a user message.

    Raises:
        ConfigError: The template fails, or omits the user's message.
    """
    before, mark, after = chat_text(tokenizer, [_question(_MARK)], where).partition(_MARK)
    if not mark:
        raise ConfigError(
            f"{where}: the chat template leaves out the user's message. Use a model with another"
            " chat template."
        )
    return before, after


def template_options(
    messages: list[Message], given: Mapping[str, Any] | None, endings: Mapping[str, bool | None]
) -> dict[str, Any]:
    """Validate the caller's template options, and add the default ones.

    Args:
        messages: Messages from `checked_messages`.
        given: Variables to pass to the chat template.
        endings: Values of `add_generation_prompt` and `continue_final_message`. None selects the
            default.
    Returns:
        Keyword arguments for `apply_chat_template`.
    Raises:
        ConfigError: An option is invalid, or a variable in `given` has the same name as an
            argument of `apply_chat_template`.
    """
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"chat_template_kwargs: got {show(given)}; expected a mapping of names to values."
        )
    chosen = {name: value for name, value in endings.items() if value is not None}
    options = {**(given or {}), **chosen}
    taken = sorted(options.keys() & _arguments_of_templates())
    if taken:
        raise ConfigError(
            f"chat_template_kwargs: got {taken[0]!r}, which is an argument of transformers;"
            " expected variables of the chat template. Leave it out."
        )
    for name in _ENDINGS:
        if not isinstance(options.get(name, True), bool):
            raise ConfigError(f"{name}: got {show(options[name])}; expected true or false.")
    continued = options.setdefault("continue_final_message", False)
    if not continued:
        return {"add_generation_prompt": True, **options}
    if options.setdefault("add_generation_prompt", False):
        raise ConfigError(
            "add_generation_prompt: got true with continue_final_message; expected one of them."
            " An answer starts a new message or continues the final one, not both."
        )
    if messages[-1]["role"] != "assistant":
        raise ConfigError(
            f"continue_final_message: got a final message of role {show(messages[-1]['role'])};"
            " expected the assistant's. Add the beginning of its answer, or leave the option out."
        )
    if messages[-1]["content"] is None:
        raise ConfigError(
            "continue_final_message: got a final message without content; expected text. Add its"
            " beginning."
        )
    return options


@cache
def _arguments_of_templates() -> frozenset[str]:
    from transformers import PreTrainedTokenizerBase

    return frozenset(signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - frozenset(
        _ENDINGS
    )


def _question(content: str | list[dict[str, Any]]) -> Message:
    return {"role": "user", "content": content}


def _for_template(tokenizer: Any, messages: list[Message]) -> list[Message]:
    """Convert each message's content to the format that the chat template supports.

    Nearly all templates accept strings. Some templates for images and text accept only lists of
    parts, and write nothing for a string.
    """
    if _reads(tokenizer, _MARK) or not _reads(tokenizer, _parts_of(_MARK)):
        return [
            message if _has_media(message) else {**message, "content": text_of(message)}
            for message in messages
        ]
    return [
        {**message, "content": content if isinstance(content, list) else _parts_of(content or "")}
        for message in messages
        for content in [message["content"]]
    ]


def _has_media(message: Message) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(part["type"] != "text" for part in content)


def _parts_of(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _reads(tokenizer: Any, content: str | list[dict[str, Any]]) -> bool:
    """Return whether the chat template supports content of this type.

    A template that supports only strings may print a list of parts in Python syntax. This does not
    count as support.
    """
    try:
        text = str(tokenizer.apply_chat_template([_question(content)], tokenize=False))
    except Exception:  # a template is an arbitrary program, and may fail in any way
        return False
    return _MARK in text and "'type'" not in text


def _reads_calls(template: Any) -> bool:
    return "tool_calls" in str(getattr(template, "chat_template", ""))


def _reads_tools(template: Any) -> bool:
    """Return whether a template renders tool definitions."""
    function = {"name": _MARK, "description": _MARK, "parameters": _NO_PARAMETERS}
    tool = {"type": "function", "function": function}
    try:
        text = template.apply_chat_template([_question("")], tools=[tool], tokenize=False)
    except Exception:  # a template is an arbitrary program, and may fail in any way
        return False
    return _MARK in str(text)


def _templated(tokenizer: Any, messages: list[Message], where: str, **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(_for_template(tokenizer, messages), **options)
    except Exception as error:  # a template is an arbitrary program, and may fail in any way
        raise ConfigError(
            f"{where}: the chat template rejects this conversation: {error}"
            f" ({type(error).__name__}). Change the messages, or use a plain prompt, which needs no"
            " template."
        ) from error
