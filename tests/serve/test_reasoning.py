"""Test reasoning before answers: budgets, grammars and token counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from paceline import LLM, SamplingParams, demo
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.engine.chat import planned_params
from paceline.parsing.answer_format import AnswerFormat
from paceline.parsing.answer_grammar import AnswerShape
from paceline.parsing.tools import NO_TOOLS
from tests.support.serving import Served, served

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{# </think> #}"
    "assistant: <think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n"
    "{% endif %}"
)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Rome", "Zürich"]}}}
SCHEMA |= {"required": ["city"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
BUDGET = 6
FIELDS: dict[str, Any] = {
    "model": "demo",
    "messages": MESSAGES,
    "max_tokens": 60,
    "temperature": 0,
    "extra_body": {"thinking_token_budget": BUDGET},
}


@pytest.fixture(scope="module")
def thinking(llm: LLM) -> Iterator[Served]:
    """Run a server whose chat template opens the reasoning."""
    before = llm.tokenizer.chat_template
    llm.tokenizer.chat_template = TEMPLATE
    try:
        with served(llm) as one:
            yield one
    finally:
        llm.tokenizer.chat_template = before


@pytest.fixture
def thinker(thinking: Served) -> Iterator[Any]:
    with thinking.client() as one:
        yield one


def end_length(llm: LLM) -> int:
    return len(llm.tokenizer("</think>", add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("drafter", ["none", "auto:budget=false"])
def test_json_follows_the_reasoning(thinker: Any, llm: LLM, drafter: str) -> None:
    """The budget ends the reasoning, and its tokens are counted, whole and streamed."""
    fields = FIELDS | {"response_format": FORMAT}
    fields["extra_body"] = {**FIELDS["extra_body"], "speculation": drafter}
    found = thinker.chat.completions.create(**fields)
    message, usage = found.choices[0].message, found.usage
    assert json.loads(message.content)["city"] in ("Rome", "Zürich")
    assert message.reasoning_content
    num_reasoning = usage.completion_tokens_details.reasoning_tokens
    assert num_reasoning == BUDGET + end_length(llm) < usage.completion_tokens
    content, reasoning, counted = "", "", 0
    for event in thinker.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    ):
        if event.usage is not None:
            counted = event.usage.completion_tokens_details.reasoning_tokens
        for choice in event.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
    assert (content, reasoning, counted) == (
        message.content,
        message.reasoning_content,
        num_reasoning,
    )


class Recorded(Drafter):
    """Drafter that proposes a recorded output, or a wrong last token."""

    name = "recorded"

    def __init__(self) -> None:
        self.answer: list[int] = []
        self.length, self.slip = 1, False

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        (request,) = requests
        at = len(request.token_ids) - request.prompt_length
        tokens = self.answer[at : at + min(self.length, max_nodes[0])]
        if tokens and self.slip:
            tokens[-1] = (tokens[-1] + 1) % 100
        return [DraftTree.chain(tokens, None, [0.9] * len(tokens))]


def test_reasoning_ends_inside_an_accepted_draft(llm: LLM) -> None:
    """Check drafts of every length around the end of the reasoning."""
    ids = llm.tokenizer("2 + 3?\n<think>\n", add_special_tokens=False)["input_ids"]
    answer_format = AnswerFormat(llm.tokenizer, reasoning_parser="think")
    plan = answer_format.plan(ids, NO_TOOLS, AnswerShape(SCHEMA), llm.eos_token_ids, BUDGET)
    params = planned_params(SamplingParams(60), plan)
    drafter = Recorded()
    engine = LLM(demo.TARGET, drafter, dtype="float32")
    plain = engine.generate([ids], params)[0].token_ids
    text = llm.tokenizer.decode(plain)
    assert re.search(r"</think>\s*{.*}", text)
    end = BUDGET + len(llm.tokenizer("</think>", add_special_tokens=False)["input_ids"])
    drafter.answer = plain
    for length in (2, end - 1, end, end + 1, end + 4, len(plain)):
        for drafter.length, drafter.slip in ((length, False), (length, True)):
            found = engine.generate([ids], params)[0]
            assert found.token_ids == plain, (length, drafter.slip)
            assert found.stats.accepted_tokens > 0
    assert len(plain) > end + 4


def test_calls_follow_the_reasoning(thinker: Any) -> None:
    found = thinker.chat.completions.create(**FIELDS, tools=[TOOL], tool_choice="required")
    message = found.choices[0].message
    assert message.reasoning_content
    assert json.loads(message.tool_calls[0].function.arguments)["city"] in ("Rome", "Zürich")


def test_responses_count_the_reasoning(thinker: Any, llm: LLM) -> None:
    text = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}}
    found = thinker.responses.create(
        model="demo",
        input=MESSAGES,
        text=text,
        max_output_tokens=200,
        temperature=0,
    )
    counted = found.usage.output_tokens_details.reasoning_tokens
    assert 0 < counted <= found.usage.output_tokens


def test_reasoning_that_is_turned_off(thinker: Any) -> None:
    """A variable of the template closes the reasoning, so the answer has none."""
    found = thinker.chat.completions.create(
        **FIELDS | {"reasoning_effort": "none", "response_format": FORMAT}
    )
    message = found.choices[0].message
    assert not message.reasoning_content
    assert found.usage.completion_tokens_details.reasoning_tokens == 0
    assert json.loads(message.content)
