"""Test outputs that transformers parses with the response template of a tokenizer."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from paceline.parsing.events import AssistantMessage
from paceline.parsing.parser import parse
from paceline.parsing.response_template import TemplateParser

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"s": {"type": "string"}}},
    },
}
TEMPLATE: Any = {
    "start_anchor": "<bot>",
    "fields": {
        "content": {"close": "<eot>"},
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{content.name}", "arguments": "{content.args}"},
            },
        },
    },
}
PROMPT, OPEN_PROMPT = "<user>Hi<bot>", "<user>Hi<bot><think>"
CALL = '<call>{"name": "f", "args": {"s": "é\\"x"}}</call>'


def read(text: str, cuts: list[int], prompt: str = PROMPT, tools: Any = (TOOL,)) -> Any:
    parser, message = TemplateParser(TEMPLATE, prompt, tools), AssistantMessage()
    for start, end in pairwise([0, *cuts, len(text)]):
        message.add(parser.feed(text[start:end]))
    message.add(parser.finish())
    return message.reasoning, message.content, [(c.name, c.arguments) for c in message.tool_calls]


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        (PROMPT, "Hello.<eot>", ("", "Hello.", [])),
        (PROMPT, f"<think>\nWhy?\n</think>\nOk {CALL}", ("Why?", "Ok", [("f", '{"s": "é\\"x"}')])),
        (
            OPEN_PROMPT,
            f"Why?</think>{CALL}{CALL}<eot>",
            ("Why?", "", [("f", '{"s": "é\\"x"}')] * 2),
        ),
        (PROMPT, "a <call>{broken}</call> b <eot>", ("", "a <call>{broken}</call> b <eot>", [])),
        (PROMPT, 'a <call>{"args": {}}</call> b', ("", 'a <call>{"args": {}}</call> b', [])),
        (PROMPT, 'a <call>{"name": "f", "ar', ("", 'a <call>{"name": "f", "ar', [])),
        (PROMPT, "1 < 2 <ca", ("", "1 < 2 <ca", [])),
    ],
)
@pytest.mark.parametrize("count", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_outputs_are_parsed_whole_and_split(
    prompt: str, text: str, expected: Any, count: int
) -> None:
    """Check whole and split texts with reasoning, calls and similar text."""
    assert read(text, [], prompt) == expected
    rng = random.Random(0)
    for _ in range(count):
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.choice((1, 3, 9))))
        assert read(text, cuts, prompt) == expected, cuts


def test_calls_without_tools_are_text() -> None:
    assert read(f"a {CALL} b", [], tools=()) == ("", f"a {CALL} b", [])


def test_the_prompt_may_open_the_reasoning() -> None:
    parser = TemplateParser(TEMPLATE, OPEN_PROMPT, ())
    assert parser.in_reasoning
    parser.feed("Why?</think>")
    assert not parser.in_reasoning
    assert parse(TemplateParser(TEMPLATE, PROMPT, ()), "Yes.").content == "Yes."
