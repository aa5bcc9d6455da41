"""Test every tool call format, with texts whole and split anywhere."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from paceline.errors import ConfigError
from paceline.parsing.events import AssistantMessage
from paceline.parsing.parser import FormatParser, ReadAnswer, parse
from paceline.parsing.reasoning import ReasoningMarkers, after_reasoning
from paceline.parsing.tool_format import FORMATS, find_format, named_format
from tests.parsing.answers import CASES, SCHEMAS, Case

THINK = ReasoningMarkers("<think>", "</think>")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.format)
def test_calls_are_parsed_in_every_format(case: Case) -> None:
    message = parse(FormatParser(FORMATS[case.format].read, SCHEMAS), case.text)
    assert message.content == case.content
    assert [(call.name, call.arguments) for call in message.tool_calls] == case.calls
    assert all(isinstance(json.loads(call.arguments), dict) for call in message.tool_calls)


def test_every_format_has_a_case() -> None:
    assert {case.format for case in CASES} == set(FORMATS)


def test_reasoning_precedes_the_content() -> None:
    """Reasoning may be opened by the model or by the prompt, or be absent."""
    hermes = FORMATS["hermes"].read
    for opened, text, reasoning in (
        (False, "<think>\nWhy not?\n</think>\n\nYes.", "Why not?"),
        (True, "Why not?\n</think>\n\nYes.", "Why not?"),
        (False, "Yes.", ""),
    ):
        message = parse(FormatParser(after_reasoning(hermes, THINK, opened), {}), text)
        assert (message.reasoning, message.content) == (reasoning, "Yes.")
    unfinished = parse(FormatParser(after_reasoning(hermes, THINK, True), {}), "Why <tool_call>")
    assert (unfinished.reasoning, unfinished.content) == ("Why <tool_call>", "")


def check_splits(read: ReadAnswer, text: str, rng: random.Random, count: int) -> None:
    whole = parse(FormatParser(read, SCHEMAS), text)
    for _ in range(count):
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.choice((1, 3, 9, 40))))
        parser, message = FormatParser(read, SCHEMAS), AssistantMessage()
        for start, end in pairwise([0, *cuts, len(text)]):
            message.add(parser.feed(text[start:end]))
        message.add(parser.finish())
        assert message == whole, (text, cuts)


@pytest.mark.parametrize("count", [15, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.format)
def test_streams_equal_the_whole(case: Case, count: int) -> None:
    """Check whole and truncated outputs in random parts, with and without reasoning."""
    rng, read = random.Random(0), FORMATS[case.format].read
    check_splits(read, case.text, rng, count)
    reasoned = "<think>\nwhy </thin\n</think>\n\n" + case.text
    check_splits(after_reasoning(read, THINK, False), reasoned, rng, count)
    for _ in range(count):
        end = rng.randrange(len(case.text))
        check_splits(read, case.text[:end], rng, 1)


def test_a_parser_that_decides_too_early_fails() -> None:
    """A parser that decides before all text has arrived must fail the check."""

    def read_hasty(source, writer, schemas):  # type: ignore[no-untyped-def]
        source.ended = True
        yield from FORMATS["hermes"].read(source, writer, schemas)

    with pytest.raises(AssertionError):
        check_splits(read_hasty, CASES[0].text, random.Random(0), 40)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>{{ tool }}", "hermes"),
        ("<tool_call><function=", "qwen3_coder"),
        ("[TOOL_CALLS]", "mistral_v3"),
        ("[TOOL_CALLS] [ARGS]", "mistral"),
        ("<|channel|> <|message|>", "harmony"),
        ("<|tool_call>call:", "gemma4"),
        ("<|tool_call_start|>", "lfm2"),
        ("<|start_header_id|> parameters", "llama3_json"),
        ("no tools", None),
    ],
)
def test_formats_are_found_in_templates(template: str, name: str | None) -> None:
    found = find_format(template)
    assert (None if found is None else found.name) == name


def test_unknown_format_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'hermes'"):
        named_format("hermess")
