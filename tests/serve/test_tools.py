"""Test tools with the official `openai` client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import BadRequestError

from paceline import LLM, SamplingParams
from paceline.text.conversations import chat_text
from tests.support.serving import Served, served

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Zürich"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
NAMED = {"type": "function", "function": {"name": "get_time"}}
FIELDS: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 60, "temperature": 0}


def streamed(client: Any, **fields: Any) -> tuple[dict[int, list[str]], str, str]:
    """Return calls by index as [id, name, arguments], the text, and the finish reason."""
    calls: dict[int, list[str]] = {}
    text, reason = "", ""
    for event in client.chat.completions.create(**fields, stream=True):
        choice = event.choices[0]
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or ():
            entry = calls.setdefault(part.index, ["", "", ""])
            entry[0] += part.id or ""
            entry[1] += part.function.name or ""
            entry[2] += part.function.arguments or ""
    return calls, text, reason


@pytest.mark.parametrize("drafter", ["prompt_lookup", "lookahead"])
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_required_calls_are_valid(client: Any, drafter: object, temperature: float) -> None:
    """Calls are the same with every drafter, whole and streamed, from the first token."""
    fields = FIELDS | {
        "tools": [WEATHER, TIME],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": temperature,
        "seed": 3,
        "extra_body": {"speculation": drafter},
    }
    plain = client.chat.completions.create(**fields | {"extra_body": {"speculation": False}})
    found = client.chat.completions.create(**fields)
    (call,) = found.choices[0].message.tool_calls
    (wanted,) = plain.choices[0].message.tool_calls
    assert call.function == wanted.function
    assert (found.choices[0].finish_reason, found.choices[0].message.content) == (
        "tool_calls",
        None,
    )
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments["city"] in ("Paris", "Zürich")
        assert arguments["days"] in (1, 2)
    calls, text, reason = streamed(client, **fields)
    assert (text, reason) == ("", "tool_calls")
    assert [(name, given) for _, name, given in calls.values()] == [
        (call.function.name, call.function.arguments)
    ]
    assert calls[0][0].startswith("call_")


def test_a_named_function_is_called(client: Any) -> None:
    found = client.chat.completions.create(**FIELDS, tools=[WEATHER, TIME], tool_choice=NAMED)
    (call,) = found.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_time", "{}")


def test_several_answers_have_different_call_ids(client: Any) -> None:
    found = client.chat.completions.create(
        **FIELDS | {"temperature": 0.8, "seed": 1, "n": 3}, tools=[TIME], tool_choice=NAMED
    )
    ids = [choice.message.tool_calls[0].id for choice in found.choices]
    assert len(set(ids)) == 3


def test_tool_choices_auto_and_none(client: Any, llm: LLM) -> None:
    """Without a call, the output is that of the same prompt; "none" hides the tools."""
    plain = llm.chat(MESSAGES, SamplingParams(8, speculation="none"))
    fields = FIELDS | {"max_tokens": 8, "tools": [WEATHER]}
    found = client.chat.completions.create(**fields, tool_choice="none")
    assert found.choices[0].message.content == plain.text
    shown = llm.chat(MESSAGES, SamplingParams(8, speculation="none"), tools=[WEATHER])
    assert shown.message is not None
    for options in ({}, {"tool_choice": "auto"}):
        found = client.chat.completions.create(**fields, **options)
        assert found.choices[0].message.content == shown.message.content
        assert found.usage.prompt_tokens > len(llm.chat_prompt(MESSAGES))


def test_results_return_to_the_model(client: Any, llm: LLM) -> None:
    """A template without tools gets definitions, calls and results as text."""
    call = client.chat.completions.create(**FIELDS, tools=[TIME], tool_choice=NAMED).choices[0]
    messages: list[dict[str, Any]] = [
        *MESSAGES,
        call.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.message.tool_calls[0].id, "content": "It is noon."},
    ]
    found = client.chat.completions.create(**FIELDS | {"messages": messages}, tools=[TIME])
    assert found.usage.prompt_tokens == len(llm.chat_prompt(messages, tools=[TIME]))
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=[TIME]))
    for part in ('"name": "get_time"', "<tool_call>", "It is noon."):
        assert part in text
    hidden = llm.tokenizer.decode(llm.chat_prompt(messages))
    assert '"name": "get_time"' in hidden
    assert "<tools>" not in hidden


def test_templates_with_tools_get_the_definitions(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    before = tokenizer.chat_template
    try:
        tokenizer.chat_template = (
            "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
            "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
            "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
        )
        call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        messages: list[dict[str, Any]] = [*MESSAGES, called]
        ids = llm.chat_prompt(messages, tools=[WEATHER, TIME])
        assert tokenizer.decode(ids) == '[get_weather][get_time]What is 2 + 3?{"a": 1}'
        assert chat_text(tokenizer, MESSAGES, "messages") == "What is 2 + 3?"
    finally:
        tokenizer.chat_template = before


def test_python_functions_are_tools(llm: LLM) -> None:
    def get_time(zone: str = "UTC") -> str:
        """Return the time.

        Args:
            zone: Name of the zone.
        """
        return zone

    answer = llm.chat(MESSAGES, SamplingParams(200), tools=[get_time], tool_choice=NAMED)
    assert answer.message is not None
    assert answer.message.tool_calls[0].name == "get_time"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [5]}, "tools", "expected a tool of type 'function'"),
        ({"tools": [{"type": "function"}]}, "tools", "expected an object with name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "1 to 64 letters"),
        ({"tools": [TIME, TIME]}, "tools", "two tools with the name 'get_time'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools",
            "expected a JSON schema of type 'object'",
        ),
        ({"tool_choice": "required"}, "tool_choice", "Add tools"),
        ({"tools": [TIME], "tool_choice": "maybe"}, "tool_choice", "expected 'none'"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "not among the tools",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": "x"}]},
            "messages",
            "expected a list of tool calls",
        ),
        ({"thinking_token_budget": 5}, "max_reasoning_tokens", "no reasoning"),
    ],
)
def test_bad_tools_are_refused(
    server: Served, fields: dict[str, Any], param: str, message: str
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, **fields}
    headers = {"authorization": "Bearer a key"}
    response = server.post("/v1/chat/completions", body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]


def test_schemas_that_cannot_be_compiled_are_refused(client: Any) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "nonsense"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(BadRequestError, match=r"tools: f: .* cannot be compiled"):
        client.chat.completions.create(**FIELDS, tools=[TIME, tool], tool_choice="required")


def test_strict_tools_give_valid_arguments(client: Any) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    found = client.chat.completions.create(**FIELDS | {"max_tokens": 20}, tools=[strict])
    for call in found.choices[0].message.tool_calls or ():
        json.loads(call.function.arguments)


def test_unknown_tool_parsers_are_refused(llm: LLM) -> None:
    with (
        pytest.raises(Exception, match="tool_call_parser: got 'hermess'"),
        served(llm, tool_call_parser="hermess"),
    ):
        pass


def test_schemas_of_real_clients(client: Any) -> None:
    """Check optional models, tagged unions, composition and unusual names.

    Arguments are valid and have no other keys.
    """
    definitions = {
        "Street": {"type": "object", "properties": {"s": {"enum": ["Königsallee", "大通り"]}}},
        "Base": {"type": "object", "properties": {"id": {"enum": [7]}}, "required": ["id"]},
    }
    cat, dog = ({"const": name, "type": "string"} for name in ("cat", "dog"))
    properties: dict[str, Any] = {
        "street": {"anyOf": [{"$ref": "#/$defs/Street"}, {"type": "null"}], "default": None},
        "pet": {
            "oneOf": [
                {"type": "object", "properties": {"kind": cat}, "required": ["kind"]},
                {"type": "object", "properties": {"kind": dog}, "required": ["kind"]},
            ]
        },
        'a "b"\n</tool_call>': {"enum": ["</tool_call>", "\u2028", "🙂"]},
    }
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    function = {"name": "api.v1-save", "parameters": {**parameters, "$defs": definitions}}
    fields = FIELDS | {"max_tokens": 200, "temperature": 0.9, "parallel_tool_calls": False}
    for seed in range(3):
        found = client.chat.completions.create(
            **fields,
            seed=seed,
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
        )
        (call,) = found.choices[0].message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert arguments.keys() == properties.keys()
        assert arguments["pet"] in ({"kind": "cat"}, {"kind": "dog"})
        assert arguments["street"] in (None, {}, *({"s": s} for s in ("Königsallee", "大通り")))
