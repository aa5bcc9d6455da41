"""Conversations: the one check of messages, and their way through a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any

from paceline.errors import ConfigError
from paceline.text.tokens import require_text

Message = dict[str, Any]

_MARK = "QUESTION"  # stands for a question while a template is read
_CALLS = ("tool_calls", "function_call")
_ENDINGS = ("add_generation_prompt", "continue_final_message")


def checked_messages(messages: Any, where: str) -> list[Message]:
    """Return messages as plain dictionaries, after checking them.

    A message has a role and a content: a string, or a list of text parts. The content of an
    assistant's message with tool calls may be null. Fields that are null are left out; all other
    fields are kept as they are.

    Args:
        messages: the caller's messages, as JSON or Python code has them.
        where: name of the messages in errors.
    Raises:
        ConfigError: something else; the message names the field and the index.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ConfigError(
            f"{where}: got {_shown(messages)}; expected a list of messages with role and content."
            " Write [{'role': 'user', 'content': '...'}]."
        )
    return [_checked(message, f"{where}.{index}") for index, message in enumerate(messages)]


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a checked message: its content, or the texts of its parts, joined."""
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
    """Return the token ids of a conversation, ready for the answer.

    Args:
        tokenizer: its chat template writes the conversation; None is refused.
        messages: see `checked_messages`.
        where: name of the messages in errors.
        chat_template_kwargs: variables of the template, by its author's names, such as
            enable_thinking. The two options below may be among them.
        add_generation_prompt: the template opens the assistant's answer. Default: true, but false
            with `continue_final_message`.
        continue_final_message: the prompt ends with the final message, the assistant's, so that
            the answer continues it. Default: false.
    Raises:
        ConfigError: messages that cannot be used, no chat template, a variable that is another
            argument of transformers, or a template that refuses the conversation.
    """
    checked = checked_messages(messages, where)
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "got a conversation for a tokenizer without chat template; expected one with. Use"
            " generate with a plain prompt."
        )
    endings = (add_generation_prompt, continue_final_message)
    asked = {name: one for name, one in zip(_ENDINGS, endings, strict=True) if one is not None}
    options = _options(checked, chat_template_kwargs, asked)
    ids = _templated(tokenizer, checked, where, return_dict=False, **options)
    return [int(token) for token in ids]


def chat_text(tokenizer: Any, messages: Any, where: str) -> str:
    """Return a conversation as text, through the tokenizer's chat template.

    Raises:
        ConfigError: as `chat_ids`.
    """
    return str(_templated(tokenizer, checked_messages(messages, where), where, tokenize=False))


def around_question(tokenizer: Any, where: str) -> tuple[str, str]:
    """Return what a chat template writes before a first question and after it.

    Raises:
        ConfigError: as `chat_ids`; or the template leaves the question out.
    """
    before, found, after = chat_text(tokenizer, [_question(_MARK)], where).partition(_MARK)
    if not found:
        raise ConfigError(
            f"{where}: got a chat template that leaves out what a user says; expected one that has"
            " it."
        )
    return before, after


def _checked(message: Any, where: str) -> Message:
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
    return {**fields, "content": _content(content, f"{where}.content")}


def _content(content: Any, where: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return require_text(where, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes) or not content:
        raise ConfigError(
            f"{where}: got {_shown(content)}; expected a string or a list of text parts."
        )
    return [_part(part, f"{where}.{index}") for index, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, str]:
    if not isinstance(part, Mapping) or part.get("type") != "text":
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


def _options(
    messages: list[Message], given: Mapping[str, Any] | None, endings: Mapping[str, bool]
) -> dict[str, Any]:
    """Return the arguments of `apply_chat_template` that a caller decides."""
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"chat_template_kwargs: got {_shown(given)}; expected a mapping of names to values."
        )
    options = {**(given or {}), **endings}
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


def _question(content: str | list[dict[str, str]]) -> Message:
    return {"role": "user", "content": content}


def _for_template(tokenizer: Any, messages: list[Message]) -> list[Message]:
    """Return messages with contents of the kind that the tokenizer's chat template reads.

    Nearly all templates read strings. Those of some models that also take images read lists of
    parts alone: of a string, they write nothing.
    """
    if _reads(tokenizer, _MARK) or not _reads(tokenizer, _parts_of(_MARK)):
        return [{**message, "content": text_of(message)} for message in messages]
    return [
        {**message, "content": content if isinstance(content, list) else _parts_of(content or "")}
        for message in messages
        for content in [message["content"]]
    ]


def _parts_of(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _reads(tokenizer: Any, content: str | list[dict[str, str]]) -> bool:
    """Return whether the template writes the text of this content, and not the Python list
    around it.
    """
    try:
        text = str(tokenizer.apply_chat_template([_question(content)], tokenize=False))
    except Exception:  # a template is a program of its author's, and may fail in any way
        return False
    return _MARK in text and "'type'" not in text


def _templated(tokenizer: Any, messages: list[Message], where: str, **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(_for_template(tokenizer, messages), **options)
    except Exception as error:  # a template is a program of its author's, and may fail in any way
        raise ConfigError(
            f"{where}: got {error} ({type(error).__name__}) from the chat template; expected one"
            " that takes this conversation. Change the messages, or leave the template out (a"
            " plain prompt)."
        ) from error
