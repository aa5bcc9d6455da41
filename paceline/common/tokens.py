"""Texts and conversations into token ids: the one place that knows what a tokenizer cannot take."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as ListLike
from functools import cache
from inspect import signature
from typing import Any

from paceline.errors import ConfigError

Messages = ListLike[Mapping[str, str]]

_MARK = "QUESTION"  # stands for a question while a template is read


def is_text(text: object) -> bool:
    """Whether it is a string that can be written as UTF-8: half a surrogate pair, or a byte that was none, cannot."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_text(where: str, text: str) -> str:
    """Return `text`, if it is one.

    Raises:
        ConfigError: it has a lone surrogate; `where` names it.
    """
    if not is_text(text):
        raise ConfigError(
            f"{where}: got {text[:60]!a}, with half a surrogate pair or bytes that are not UTF-8; expected text. Write it in"
            " UTF-8."
        )
    return text


def text_ids(tokenizer: Any, text: str, where: str) -> list[int]:
    """Return the token ids of a text, special tokens of the tokenizer's included.

    Raises:
        ConfigError: it is no text; `where` names it.
    """
    return [int(token) for token in tokenizer(require_text(where, text))["input_ids"]]


def word_ids(tokenizer: Any, word: str, where: str) -> set[tuple[int, ...]]:
    """Return the ways a word is spelled in tokens: as it begins a text, and as it stands behind a space.

    Raises:
        ConfigError: it is no text, or has no tokens; `where` names it.
    """
    bare = require_text(where, word).lstrip()
    ways = {tuple(map(int, tokenizer(text, add_special_tokens=False)["input_ids"])) for text in (bare, f" {bare}")}
    if () in ways:
        raise ConfigError(f"{where}: got {word!r}, which has no tokens; expected words of the tokenizer's. Leave it out.")
    return ways


def chat_ids(tokenizer: Any, messages: Messages, where: str, chat_template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
    """Return the token ids of a conversation, ready for the answer, through the tokenizer's chat template.

    Args:
        chat_template_kwargs: variables of the template, by its author's names, such as enable_thinking.
    Raises:
        ConfigError: a message that is no text, a variable that is an argument of transformers', or a template that refuses the
            conversation or does not compile.
    """
    given = dict(chat_template_kwargs or {})
    taken = sorted(given.keys() & _arguments_of_templates())
    if taken:
        raise ConfigError(
            f"chat_template_kwargs: got {taken[0]!r}, transformers' own; expected variables of the template. Leave it out."
        )
    ids = _templated(tokenizer, messages, where, add_generation_prompt=True, return_dict=False, **given)
    return [int(token) for token in ids]


@cache
def _arguments_of_templates() -> frozenset[str]:
    from transformers import PreTrainedTokenizerBase

    return frozenset(signature(PreTrainedTokenizerBase.apply_chat_template).parameters)


def chat_text(tokenizer: Any, messages: Messages, where: str) -> str:
    """Return a conversation as text, through the tokenizer's chat template.

    Raises:
        ConfigError: as `chat_ids`.
    """
    return str(_templated(tokenizer, messages, where, tokenize=False))


def around_question(tokenizer: Any, where: str) -> tuple[str, str]:
    """Return what the tokenizer's chat template writes before a question that begins a conversation, and behind it.

    Raises:
        ConfigError: as `chat_ids`; or the template leaves the question out.
    """
    before, found, behind = chat_text(tokenizer, [{"role": "user", "content": _MARK}], where).partition(_MARK)
    if not found:
        raise ConfigError(f"{where}: got a chat template that leaves out what a user says; expected one that has it.")
    return before, behind


def _templated(tokenizer: Any, messages: Messages, where: str, **options: Any) -> Any:
    for message in messages:
        for value in message.values():
            if isinstance(value, str):
                require_text(where, value)
    try:
        return tokenizer.apply_chat_template(list(messages), **options)
    except Exception as error:  # a template is a program of its author's, and may fail in any way
        raise ConfigError(
            f"{where}: got {error} ({type(error).__name__}) from the chat template; expected one that takes this conversation."
            " Change the messages, or leave the template out (a plain prompt)."
        ) from error
