"""Check chat messages, and render them with a chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any

from paceline.errors import ConfigError
from paceline.text.tokens import require_text

Message = dict[str, Any]
PartReader = Callable[[Mapping[str, Any], str], dict[str, Any]]

_MARK = "QUESTION"  # placeholder question that shows how a template writes contents
_CALLS = ("tool_calls", "function_call")
_ENDINGS = ("add_generation_prompt", "continue_final_message")


def checked_messages(
    messages: Any, where: str, read_part: PartReader | None = None
) -> list[Message]:
    """Return messages as plain dictionaries, after checking them.

    A message has a role and a content: a string, or a list of text parts. The content of an
    assistant's message with tool calls may be null. Null fields are removed; other fields are
    unchanged.

    Args:
        messages: The caller's messages, from JSON or Python code.
        where: Name of the messages in errors.
        read_part: Function that checks and loads parts other than text, given a part and its name
            in errors. None means such parts are rejected.
    Raises:
        ConfigError: A message is invalid; the error names the field and the index.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ConfigError(
            f"{where}: got {_shown(messages)}; expected a list of messages with role and content."
            " Write [{'role': 'user', 'content': '...'}]."
        )
    return [
        _checked(message, f"{where}.{index}", read_part) for index, message in enumerate(messages)
    ]


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a checked message, with the texts of its parts joined."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


def chat_ids(
    tokenizer: Any,
    messages: Any,
    where: str,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
) -> list[int]:
    """Return the token ids of a conversation as a prompt.

    Args:
        tokenizer: Tokenizer with a chat template; None is rejected.
        messages: See `checked_messages`.
        where: Name of the messages in errors.
        chat_template_kwargs: Variables of the template, such as enable_thinking. They may include
            the two options below.
        add_generation_prompt: Open the assistant's answer at the end of the prompt. Default: true,
            but false with `continue_final_message`.
        continue_final_message: End the prompt with the assistant's final message, so that the
            answer continues it. Default: false.
    Raises:
        ConfigError: The messages are invalid, there is no chat template, a variable is another
            argument of transformers, or the template rejects the conversation.
    """
    checked = checked_messages(messages, where)
    endings = dict(zip(_ENDINGS, (add_generation_prompt, continue_final_message), strict=True))
    options = template_options(checked, chat_template_kwargs, endings)
    return rendered_ids(tokenizer, checked, where, options)


def rendered_ids(
    tokenizer: Any, messages: list[Message], where: str, options: Mapping[str, Any]
) -> list[int]:
    """Return the token ids of checked messages that contain text only.

    Args:
        tokenizer: As in `chat_ids`.
        messages: Checked messages.
        where: As in `chat_ids`.
        options: See `template_options`.
    Raises:
        ConfigError: There is no chat template, or it rejects the conversation.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "got a conversation for a tokenizer without chat template; expected one with. Use"
            " generate with a plain prompt."
        )
    ids = _templated(tokenizer, messages, where, return_dict=False, **options)
    return [int(token) for token in ids]


def render_text(
    template: Any, messages: list[Message], where: str, options: Mapping[str, Any]
) -> str:
    """Return checked messages as text.

    Args:
        template: Tokenizer or processor with a chat template.
        messages: Checked messages.
        where: Name of the messages in errors.
        options: See `template_options`.
    Raises:
        ConfigError: The chat template rejects the conversation.
    """
    return str(_templated(template, messages, where, tokenize=False, **options))


def chat_text(tokenizer: Any, messages: Any, where: str) -> str:
    """Return a conversation as text, rendered by the tokenizer's chat template.

    Raises:
        ConfigError: As `chat_ids`.
    """
    return render_text(tokenizer, checked_messages(messages, where), where, {})


def around_question(tokenizer: Any, where: str) -> tuple[str, str]:
    """Return the text that a chat template writes before and after the first question.

    Raises:
        ConfigError: As `chat_ids`, or the template leaves the question out.
    """
    before, mark, after = chat_text(tokenizer, [_question(_MARK)], where).partition(_MARK)
    if not mark:
        raise ConfigError(
            f"{where}: got a chat template that leaves out the user's message; expected one that"
            " writes it."
        )
    return before, after


def _checked(message: Any, where: str, read_part: PartReader | None) -> Message:
    if not isinstance(message, Mapping):
        raise ConfigError(
            f"{where}: got {_shown(message)}; expected an object with role and content."
        )
    fields = {name: value for name, value in message.items() if value is not None}
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not role:
        raise ConfigError(
            f"{where}.role: got {_shown(message.get('role'))}; expected a string, such as 'user'"
            " or 'assistant'."
        )
    require_text(f"{where}.role", role)
    if not fields.get("tool_calls", True):
        del fields["tool_calls"]  # an empty list: no calls
    if content is None:
        if role != "assistant" or not any(name in fields for name in _CALLS):
            raise ConfigError(
                f"{where}.content: got nothing; expected text. Only an assistant's message with"
                " tool_calls can do without."
            )
        return {**fields, "content": None}
    return {**fields, "content": _content(content, f"{where}.content", read_part)}


def _content(content: Any, where: str, read_part: PartReader | None) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return require_text(where, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes) or not content:
        raise ConfigError(
            f"{where}: got {_shown(content)}; expected a string or a list of text parts."
        )
    return [_part(part, f"{where}.{index}", read_part) for index, part in enumerate(content)]


def _part(part: Any, where: str, read_part: PartReader | None) -> dict[str, Any]:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        if read_part is not None and isinstance(part, Mapping) and part.get("type") is not None:
            return read_part(part, where)
        shown = _shown(part.get("type") if isinstance(part, Mapping) else part)
        raise ConfigError(
            f"{where}: got {shown}; expected a text part, {{'type': 'text', 'text': '...'}}."
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise ConfigError(f"{where}.text: got {_shown(text)}; expected a string.")
    return {"type": "text", "text": require_text(f"{where}.text", text)}


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def template_options(
    messages: list[Message], given: Mapping[str, Any] | None, endings: Mapping[str, bool | None]
) -> dict[str, Any]:
    """Return the arguments for `apply_chat_template` that the caller can set.

    Args:
        messages: Checked messages.
        given: Variables of the template.
        endings: `add_generation_prompt` and `continue_final_message`; None means default.
    Raises:
        ConfigError: An option is invalid, or it is another argument of transformers.
    """
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"chat_template_kwargs: got {_shown(given)}; expected a mapping of names to values."
        )
    chosen = {name: value for name, value in endings.items() if value is not None}
    options = {**(given or {}), **chosen}
    taken = sorted(options.keys() & _arguments_of_templates())
    if taken:
        raise ConfigError(
            f"chat_template_kwargs: got {taken[0]!r}, transformers' own; expected variables of the"
            " template. Leave it out."
        )
    for name in _ENDINGS:
        if not isinstance(options.get(name, True), bool):
            raise ConfigError(f"{name}: got {_shown(options[name])}; expected true or false.")
    continued = options.setdefault("continue_final_message", False)
    if not continued:
        return {"add_generation_prompt": True, **options}
    if options.setdefault("add_generation_prompt", False):
        raise ConfigError(
            "add_generation_prompt: got true with continue_final_message; expected one of them. A"
            " new message or the final one can be written, not both."
        )
    if messages[-1]["role"] != "assistant":
        raise ConfigError(
            f"continue_final_message: got a final message of role {_shown(messages[-1]['role'])};"
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
    """Return messages with contents in the form that the chat template supports.

    Nearly all templates support strings. The templates of some models for images and text support
    only lists of parts, and write nothing for a string.
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
    """Return whether the template writes the text of a content, without Python syntax."""
    try:
        text = str(tokenizer.apply_chat_template([_question(content)], tokenize=False))
    except Exception:  # a template is an arbitrary program, and may fail in any way
        return False
    return _MARK in text and "'type'" not in text


def _templated(tokenizer: Any, messages: list[Message], where: str, **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(_for_template(tokenizer, messages), **options)
    except Exception as error:  # a template is an arbitrary program, and may fail in any way
        raise ConfigError(
            f"{where}: got {error} ({type(error).__name__}) from the chat template; expected one"
            " that takes this conversation. Change the messages, or leave the template out (a"
            " plain prompt)."
        ) from error
