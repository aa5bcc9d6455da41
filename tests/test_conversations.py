"""Test which messages `LLM.chat`, the server and prompt files accept or refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams, demo
from paceline.cli.generate import read_prompts
from paceline.datastore.inputs import documents
from paceline.errors import ConfigError
from paceline.serve.requests import ChatRequest
from paceline.text.messages import checked_messages
from tests.support.serving import Served, served

CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
GREEDY = SamplingParams(8, speculation="none")
PARTS = [{"type": "text", "text": "Name a "}, {"type": "text", "text": "colour."}]
SEVERAL: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind.", "name": None},
    {"role": "user", "content": PARTS, "name": "Ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "5", "tool_call_id": "1"},
]
USER: dict[str, Any] = {"role": "user", "content": "Name a colour."}
BEGUN = [USER, {"role": "assistant", "content": "My favourite is"}]
REFUSED: list[tuple[Any, str]] = [
    ("hi", "messages"),
    (b"hi", "messages"),
    (None, "messages"),
    ([], "messages"),
    (USER, "messages"),
    (["hi"], "messages.0"),
    ([USER, 5], "messages.1"),
    ([{}], "messages.0.role"),
    ([{"content": "a"}], "messages.0.role"),
    ([{"role": 3, "content": "a"}], "messages.0.role"),
    ([{"role": None, "content": "a"}], "messages.0.role"),
    ([USER, {"role": "user"}], "messages.1.content"),
    ([{"role": "user", "content": None}], "messages.0.content"),
    ([{"role": "user", "content": None, "tool_calls": [CALL]}], "messages.0.content"),
    ([{"role": "assistant", "content": None}], "messages.0.content"),
    ([{"role": "assistant", "content": None, "tool_calls": []}], "messages.0.content"),
    ([{"role": "user", "content": 5}], "messages.0.content"),
    ([{"role": "user", "content": True}], "messages.0.content"),
    ([{"role": "user", "content": {"type": "text", "text": "a"}}], "messages.0.content"),
    ([{"role": "user", "content": b"a"}], "messages.0.content"),
    ([{"role": "user", "content": []}], "messages.0.content"),
    ([{"role": "user", "content": ["a"]}], "messages.0.content.0"),
    (
        [{"role": "user", "content": [*PARTS, {"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages.0.content.2",
    ),
    ([{"role": "user", "content": [{"text": "a"}]}], "messages.0.content.0"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
    ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages.0.content.0.text"),
    ([{"role": "user", "content": "\ud800"}], "messages.0.content"),
    (
        [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}],
        "messages.0.content.0.text",
    ),
]
AS_STRINGS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls"
    " }}{% endfor %}"
)
AS_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'text' %}{{"
    " p.text }}{% endif %}{% endfor %}{% endfor %}"
)
AS_BOTH = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{%"
    " for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(demo.TARGET, "prompt_lookup", dtype="float32")


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Served]:
    with served(llm, ()) as one:
        yield one


def text(llm: LLM, messages: Any, **options: Any) -> str:
    return str(llm.tokenizer.decode(llm.chat_prompt(messages, **options)))


@pytest.mark.parametrize(("messages", "field"), REFUSED, ids=ascii)
def test_invalid_messages_are_refused(llm: LLM, server: Served, messages: Any, field: str) -> None:
    """The error names the field and the index, both in the library and in the server."""
    with pytest.raises(ConfigError) as caught:
        llm.chat(messages, GREEDY)
    assert str(caught.value).startswith(f"{field}: got ")
    assert "\n" not in str(caught.value)
    if "b'" not in ascii(messages):  # JSON has no bytes
        found = server.post("/v1/chat/completions", {"messages": messages})
        error = found.json()["error"]
        assert (found.status_code, error["param"], error["message"]) == (
            400,
            "messages",
            str(caught.value),
        )


@pytest.mark.parametrize("template", [AS_STRINGS, AS_PARTS, AS_BOTH])
def test_templates_get_strings_or_parts_as_they_need(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(llm.tokenizer, "chat_template", template)
    joined = [{**USER, "content": "Name a colour."}, {"role": "assistant", "content": "Red."}]
    parts = [
        {**USER, "content": PARTS},
        {"role": "assistant", "content": ({"type": "text", "text": "Red."},)},
    ]
    mixed = [joined[0], parts[1]]
    assert {text(llm, one) for one in (joined, parts, mixed)} == {
        "<user>Name a colour.<assistant>Red."
    }


def test_tool_calls_and_other_fields_reach_the_template(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields are passed on unchanged, null ones are omitted, and null content is ""."""
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.name if m.name is defined }}|{{ m.content }}|"
        "{{ m.tool_calls | tojson if m.tool_calls }}{{ m.tool_call_id }}{% endfor %}"
    )
    monkeypatch.setattr(llm.tokenizer, "chat_template", template)
    calls = json.dumps([CALL])
    assert (
        text(llm, SEVERAL)
        == f"<system>|Be kind.|<user>Ann|Name a colour.|<assistant>||{calls}<tool>|5|1"
    )
    before = json.dumps(SEVERAL)
    checked_messages(SEVERAL, "messages")[1]["content"][0]["text"] = "changed"
    assert json.dumps(SEVERAL) == before


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}{{ m.role + m.content }}{% endfor %}", AS_STRINGS, AS_PARTS],
)
def test_null_content_is_an_empty_text(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """Check templates that concatenate the content and templates that print it."""
    monkeypatch.setattr(llm.tokenizer, "chat_template", template)
    assert text(llm, [USER, SEVERAL[2]]) == text(llm, [USER, {**SEVERAL[2], "content": ""}])
    assert "None" not in text(llm, [USER, SEVERAL[2]])


def test_the_server_accepts_the_same_messages(llm: LLM, server: Served) -> None:
    for messages in (SEVERAL, [{**USER, "content": PARTS}], BEGUN):
        body = {"messages": messages, "max_tokens": 8, "temperature": 0}
        found = server.post("/v1/chat/completions", body).json()
        assert found["choices"][0]["message"]["content"] == llm.chat(messages, GREEDY).text


def test_the_server_schema_describes_the_messages() -> None:
    schema = ChatRequest.model_json_schema()
    message, part = schema["$defs"]["Message"], schema["$defs"]["TextPart"]
    assert schema["properties"]["messages"]["items"] == {"$ref": "#/$defs/Message"}
    assert (message["required"], part["required"]) == (["role"], ["type", "text"])
    assert part["properties"]["type"]["const"] == "text"


def test_prompt_files_and_stores_accept_messages(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text(
        "\n".join(json.dumps({"messages": one}) for one in (SEVERAL, [{**USER, "content": PARTS}]))
    )
    assert [prompt.text for prompt in read_prompts(path)] == ["5", "Name a colour."]
    assert text(llm, read_prompts(path)[1].prompt) == text(llm, [USER])
    stored = [llm.tokenizer.decode(document) for document in documents([str(path)], llm.tokenizer)]
    assert "Name a colour." in stored[0]
    assert "{" not in stored[1]
    path.write_text(
        json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})
    )
    with pytest.raises(
        ConfigError,
        match=r"talks.jsonl:1: messages.0.content.0: got 'image_url'; expected a text part",
    ):
        read_prompts(path)


def test_the_final_message_is_continued(llm: LLM, server: Served) -> None:
    """The prompt ends with the text of the message, without a new header."""
    ids = llm.chat_prompt(BEGUN, continue_final_message=True)
    assert ids == llm.chat_prompt(BEGUN, {"continue_final_message": True})
    assert llm.tokenizer.decode(ids).endswith(BEGUN[1]["content"])
    assert llm.tokenizer.decode(ids).startswith(text(llm, [USER]))
    parts = [USER, {"role": "assistant", "content": [{"type": "text", "text": "My favourite is"}]}]
    assert llm.chat_prompt(parts, continue_final_message=True) == ids
    (wanted,) = llm.generate([ids], GREEDY)
    assert llm.chat(BEGUN, GREEDY, continue_final_message=True).token_ids == wanted.token_ids
    body = {"messages": BEGUN, "max_tokens": 8, "temperature": 0}
    for more in (
        {"continue_final_message": True},
        {"chat_template_kwargs": {"continue_final_message": True}},
    ):
        found = server.post("/v1/chat/completions", body | more).json()
        assert found["choices"][0]["message"]["content"] == wanted.text


def test_add_generation_prompt_controls_the_assistant_header(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        llm.tokenizer,
        "chat_template",
        AS_STRINGS + "{% if add_generation_prompt %}<assistant>{% endif %}",
    )
    assert (
        text(llm, [USER])
        == text(llm, [USER], add_generation_prompt=True)
        == "<user>Name a colour.<assistant>"
    )
    assert text(llm, [USER], add_generation_prompt=False) == "<user>Name a colour."
    assert (
        text(llm, BEGUN, continue_final_message=True)
        == "<user>Name a colour.<assistant>My favourite is"
    )


@pytest.mark.parametrize(
    ("messages", "options", "named"),
    [
        (
            BEGUN,
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt: got true with",
        ),
        (
            [USER],
            {"continue_final_message": True},
            "continue_final_message: got a final message of role 'user'",
        ),
        (
            SEVERAL[:3],
            {"continue_final_message": True},
            "continue_final_message: got a final message without content",
        ),
        (
            BEGUN,
            {"continue_final_message": "content"},
            "continue_final_message: got 'content'; expected true or false",
        ),
        (
            BEGUN,
            {"add_generation_prompt": 1},
            "add_generation_prompt: got 1; expected true or false",
        ),
        (
            BEGUN,
            {"chat_template_kwargs": {"continue_final_message": 1}},
            "continue_final_message: got 1",
        ),
        (
            BEGUN,
            {"chat_template_kwargs": [1]},
            r"chat_template_kwargs: got \[1\]; expected a mapping",
        ),
        (
            BEGUN,
            {"chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs: got 'tools', which is an argument of transformers",
        ),
    ],
)
def test_conflicting_prompt_endings_are_refused(
    llm: LLM, messages: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        llm.chat_prompt(messages, **options)
