"""Test /v1/responses and /v1/messages with their official clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from paceline import LLM, SamplingParams
from tests.support.serving import KEY, Served

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
FIELDS: dict[str, Any] = {"model": "demo", "temperature": 0}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}


@pytest.fixture
def text(llm: LLM) -> str:
    return llm.chat(MESSAGES, SamplingParams(8, speculation="none")).text


def test_responses(client: Any, text: str) -> None:
    """Check a string, messages and parts, whole and streamed."""
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "What is 2 + 3?"}]}]
    for given in ("What is 2 + 3?", MESSAGES, parts):
        found = client.responses.create(**FIELDS, input=given, max_output_tokens=8)
        assert found.output_text == text
        assert (found.status, found.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
        assert found.usage.output_tokens == 8
    events = list(
        client.responses.create(**FIELDS, input=MESSAGES, max_output_tokens=8, stream=True)
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.incomplete"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text == events[-1].response.output_text


def test_calls_in_responses(client: Any) -> None:
    fields = FIELDS | {
        "input": "Weather?",
        "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "max_output_tokens": 60,
    }
    found = client.responses.create(**fields)
    (call,) = found.output
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "get_weather",
        {"city": "Rome"},
    )
    assert found.status == "completed"
    with client.responses.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output[0].arguments == call.arguments
    assert "response.function_call_arguments.delta" in kinds
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    second = client.responses.create(
        **FIELDS,
        input=[output],
        previous_response_id=found.id,
        tools=[FUNCTION],
        max_output_tokens=4,
    )
    whole = client.responses.create(
        **FIELDS,
        input=[{"role": "user", "content": "Weather?"}, call.model_dump(), output],
        tools=[FUNCTION],
        max_output_tokens=4,
    )
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens == whole.usage.input_tokens


def test_json_in_responses(client: Any) -> None:
    text = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}}
    found = client.responses.create(**FIELDS, input="City?", text=text, max_output_tokens=60)
    assert json.loads(found.output_text) == {"city": "Rome"}


def test_bad_responses(client: Any) -> None:
    with pytest.raises(NotFoundError, match="is not stored"):
        client.responses.create(**FIELDS, input="x", previous_response_id="resp_1")
    with pytest.raises(BadRequestError, match="expected message, function_call"):
        client.responses.create(**FIELDS, input=[{"type": "computer_call"}])
    with pytest.raises(BadRequestError, match="expected a tool of type"):
        client.responses.create(**FIELDS, input="x", tools=[{"type": "web_search"}])
    unstored = client.responses.create(**FIELDS, input="x", store=False, max_output_tokens=1)
    with pytest.raises(NotFoundError, match="is not stored"):
        client.responses.create(**FIELDS, input="x", previous_response_id=unstored.id)


def test_messages(server: Served, text: str) -> None:
    """Check a message, its stream, a call and a bad block, without Anthropic's client."""
    body = {**FIELDS, "messages": MESSAGES, "max_tokens": 8}
    headers = {"x-api-key": KEY}
    found = server.post("/v1/messages", body, headers=headers).json()
    assert found["content"] == [{"type": "text", "text": text}]
    assert (found["stop_reason"], found["usage"]["output_tokens"]) == ("max_tokens", 8)
    stream = server.post("/v1/messages", {**body, "stream": True}, headers=headers).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == text
    forced = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}
    call = server.post("/v1/messages", {**body, **forced, "max_tokens": 60}, headers=headers).json()
    assert call["stop_reason"] == "tool_use"
    assert call["content"][0]["input"] == {"city": "Rome"}
    messages = [{"role": "user", "content": [{"type": "video"}]}]
    bad = server.post("/v1/messages", {**body, "messages": messages}, headers=headers)
    assert bad.status_code == 400
    assert bad.json()["type"] == "error"
    assert "expected text, image" in bad.json()["error"]["message"]
    ends = {**body, "stop_sequences": ["zzz", text[1:3]]}
    stopped = server.post("/v1/messages", ends, headers=headers).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", text[1:3])
    begun = [*MESSAGES, {"role": "assistant", "content": "The answer"}]
    continued = server.post("/v1/messages", {**body, "messages": begun}, headers=headers).json()
    assert continued["usage"]["input_tokens"] < found["usage"]["input_tokens"] + 8


@pytest.fixture
def anthropic(server: Served) -> Iterator[Any]:
    library = pytest.importorskip("anthropic")
    with library.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as one:
        yield one


def test_anthropics_client(anthropic: Any, text: str) -> None:
    """Check whole and streamed messages, calls and their results."""
    fields: dict[str, Any] = {"model": "demo", "extra_body": {"temperature": 0}}
    found = anthropic.messages.create(**fields, messages=MESSAGES, max_tokens=8)
    assert found.content[0].text == text
    with anthropic.messages.stream(**fields, messages=MESSAGES, max_tokens=8) as stream:
        assert "".join(stream.text_stream) == text
    forced = {
        "tools": [TOOL],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 60,
    }
    call = anthropic.messages.create(**fields, **forced, messages=MESSAGES)
    assert (call.stop_reason, call.content[0].input) == ("tool_use", {"city": "Rome"})
    with anthropic.messages.stream(**fields, **forced, messages=MESSAGES) as stream:
        assert stream.get_final_message().content[0].input == {"city": "Rome"}
    result = {"type": "tool_result", "tool_use_id": call.content[0].id, "content": "Sunny."}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": [block.model_dump() for block in call.content]},
        {"role": "user", "content": [result]},
    ]
    answer = anthropic.messages.create(**fields, tools=[TOOL], messages=messages, max_tokens=4)
    assert answer.usage.output_tokens == 4
