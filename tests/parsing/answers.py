"""Outputs in every tool call format, with the message that each represents."""

from __future__ import annotations

from typing import NamedTuple

SCHEMAS = {
    "f": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
}


class Case(NamedTuple):
    """An output with its content and tool calls."""

    format: str
    text: str
    content: str
    calls: list[tuple[str, str]]


CASES = [
    Case(
        "hermes",
        'Sure.\n<tool_call>\n{"name": "f", "arguments": {"s": "a}\\"b", "n": [1,{"x":2}]}}\n'
        '</tool_call>\n<tool_call>\n{"arguments": {"n": 1}, "name": "g"}\n</tool_call>',
        "Sure.",
        [("f", '{"s": "a}\\"b", "n": [1,{"x":2}]}'), ("g", '{"n": 1}')],
    ),
    Case("hermes", 'a <tool_call> b {"x": 1}', 'a <tool_call> b {"x": 1}', []),
    Case("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "", [("f", "{}")]),
    Case(
        "qwen3_coder",
        'Hi\n\n<tool_call>\n<function=f>\n<parameter=s>\nline "1"\n<b>é\n</parameter>\n'
        '<parameter=n>\n12\n</parameter>\n<parameter=o>\n{"a": True}\n</parameter>\n</function>\n'
        "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        "Hi",
        [("f", '{"s": "line \\"1\\"\\n<b>é", "n": 12, "o": {"a": true}}'), ("g", "{}")],
    ),
    Case(
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {"s": "x"}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"s": "x"}'), ("g", "{}")],
    ),
    Case("llama3_json", ' {"answer": 3} and more ', ' {"answer": 3} and more ', []),
    Case(
        "pythonic",
        '[f(s="a,)\\"b", n=-1, l=[1, True]), g()]',
        "",
        [("f", '{"s": "a,)\\"b", "n": -1, "l": [1, true]}'), ("g", "{}")],
    ),
    Case("pythonic", "[1, 2] is a list", "[1, 2] is a list", []),
    Case(
        "lfm2",
        "ok <|tool_call_start|>[f(s='it\\'s', d={'a': None})]<|tool_call_end|>",
        "ok",
        [("f", '{"s": "it\'s", "d": {"a": null}}')],
    ),
    Case(
        "mistral_v3",
        '[TOOL_CALLS][{"name": "f", "arguments": {"s": "x"}, "id": "abc"}, '
        '{"name":"g","arguments":{}}]',
        "",
        [("f", '{"s": "x"}'), ("g", "{}")],
    ),
    Case(
        "mistral",
        'Text[TOOL_CALLS]f[ARGS]{"s": "x"}[TOOL_CALLS]g[CALL_ID]1[ARGS]{}',
        "Text",
        [("f", '{"s": "x"}'), ("g", "{}")],
    ),
    Case(
        "harmony",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.f <|constrain|>json<|message|>{"s": "x"}<|call|>',
        "",
        [("f", '{"s": "x"}')],
    ),
    Case(
        "harmony",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Hello<|return|>",
        "Hello",
        [],
    ),
    Case(
        "gemma4",
        'x<|tool_call>call:f{s:<|"|>a"b\n<|"|>,n:3,o:{k:[1,<|"|>z<|"|>,true],e:{}}}<tool_call|>'
        "<|tool_call>call:g{}<tool_call|>",
        "x",
        [("f", '{"s": "a\\"b\\n", "n": 3, "o": {"k": [1, "z", true], "e": {}}}'), ("g", "{}")],
    ),
    Case(
        "deepseek_v3",
        "ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"  # noqa: RUF001
        '{"s": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',  # noqa: RUF001
        "ok",
        [("f", '{"s": "x"}')],
    ),
    Case(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>"  # noqa: RUF001
        '{"n": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',  # noqa: RUF001
        "",
        [("g", '{"n": 1}')],
    ),
]
