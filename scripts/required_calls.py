"""Required tool calls with random schemas: validity, equality with plain decoding, forward passes.

    python scripts/required_calls.py smollm2 --count 1000 --json docs/results/required-calls.json

Each drafter answers the same conversations with the same seeds, eight at a time. The result holds,
for each drafter, the numbers of invalid calls and of answers that differ from plain decoding, and
the number of tokens per forward pass.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from paceline import LLM, SamplingParams
from paceline.engine.chat import ChatPlan
from paceline.errors import ConfigError
from paceline.util.machine import processor

DRAFTERS = ("none", "auto:use_grammar=false", "auto", "prompt_lookup", "sssd", "token_recycling")
WORDS = ("city", "days", "Größe", "日付", "unit", "tags", "user_id", "price", "is_open", "note")


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return an object's schema with nested values, enums, numbers and Unicode."""
    names = rng.sample(WORDS, rng.randint(1, 4))
    properties = {name: random_value(rng, depth) for name in names}
    return {"type": "object", "properties": properties, "required": names}


def random_value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["enum", "integer", "number", "boolean", "string"] + ["object", "array"] * (depth > 0)
    kind = rng.choice(kinds)
    if kind == "enum":
        return {"enum": rng.sample(["rot", "grün", "青", "a b", 'q"', 3, None], 3)}
    if kind == "object":
        return random_schema(rng, depth - 1)
    if kind == "array":
        return {"type": "array", "items": random_value(rng, depth - 1), "maxItems": 2}
    if kind == "integer":
        return {"type": "integer", "minimum": 0, "maximum": 999}
    if kind == "number":
        return {"type": "number", "minimum": 0, "maximum": 10}
    return {"type": kind, **({"maxLength": 12} if kind == "string" else {})}


def matches(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value is valid under a schema of this script."""
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        return (
            isinstance(value, dict)
            and set(value) == set(schema["required"])
            and all(matches(value[name], each) for name, each in schema["properties"].items())
        )
    if kind == "array":
        short = isinstance(value, list) and len(value) <= schema["maxItems"]
        return short and all(matches(item, schema["items"]) for item in value)
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "boolean":
        return isinstance(value, bool)
    number = isinstance(value, int) or (kind == "number" and isinstance(value, float))
    return number and schema["minimum"] <= value <= schema["maximum"]


def measure(llm: LLM, drafter: str, cases: list[Any], plain: list[list[int]] | None) -> Any:
    """Answer all cases with a drafter; return the figures and the token ids."""
    prompts, params = [case[1].prompt_ids for case in cases], []
    for number, (_, plan) in enumerate(cases):
        given = SamplingParams(
            400, temperature=0.7 * (number % 2), seed=number, speculation=drafter
        )
        params.append(plan.params(given))
    answers = llm.generate(prompts, params)
    invalid = 0
    for (schema, plan), answer in zip(cases, answers, strict=True):
        message = plan.with_messages(answer, None).message
        assert message is not None
        calls = message.tool_calls
        try:
            valid = len(calls) == 1 and matches(json.loads(calls[0].arguments), schema)
        except ValueError:
            valid = False
        invalid += not valid
    ids = [answer.token_ids for answer in answers]
    tokens = sum(map(len, ids))
    forwards = sum(answer.stats.target_forwards for answer in answers)
    different = 0 if plain is None else sum(a != b for a, b in zip(ids, plain, strict=True))
    figures = {
        "drafter": drafter,
        "calls": len(cases),
        "invalid": invalid,
        "different": different,
        "tokens": tokens,
        "tokens_per_forward": round(tokens / forwards, 3),
    }
    return figures, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    llm, rng = LLM(options.model, max_batch=8), random.Random(0)
    cases: list[Any] = []
    while len(cases) < options.count:
        schema = random_schema(rng)
        function = {"name": rng.choice(["save", "find"]), "parameters": schema}
        tools = [{"type": "function", "function": function}]
        choice = {"type": "function", "function": {"name": function["name"]}}
        ids = llm.chat_prompt([{"role": "user", "content": "Call the function."}], tools=tools)
        try:
            plan = ChatPlan.of(llm.tokenizer, ids, llm.eos_token_ids, tools, choice)
        except ConfigError as error:
            print("left out:", error)
            continue
        cases.append((schema, plan))
    results: list[Any] = []
    plain: list[list[int]] | None = None
    for drafter in options.drafters.split(","):
        figures, ids = measure(llm, drafter, cases, plain)
        plain = plain or ids
        results.append(figures)
        print(json.dumps(figures), flush=True)
    if options.json is not None:
        record = {"model": options.model, "machine": processor(), "results": results}
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
