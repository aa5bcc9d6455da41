"""Required tool calls with random schemas: validity, equality with plain decoding, forward passes.

    python scripts/required_calls.py smollm2 --draft-model smollm2-draft --count 1000 \\
        --json docs/results/required-calls.json

Plain decoding in this process answers each conversation. Each drafter then streams the same answers
from a server, eight at a time, with the same seeds. The result holds, for each drafter, the numbers
of invalid calls and of calls that differ from plain decoding, and the tokens per forward pass. It
is rewritten after every block of conversations, so an interrupted run counts the finished blocks.
An existing result keeps its other drafters.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from local_server import local_server, openai_client
from openai import OpenAI
from random_schemas import matches, random_schema

from paceline import LLM, SamplingParams, datastore, demo
from paceline.engine.chat import ChatPlan
from paceline.parsing.answer_format import AnswerFormat
from paceline.parsing.answer_grammar import AnswerShape
from paceline.parsing.tools import tool_use
from paceline.serve import Settings
from paceline.util.machine import processor

DRAFTERS = (
    "none",
    "auto:use_draft_model=false,use_grammar=false",
    "auto:use_draft_model=false",
    "auto",
    "prompt_lookup",
    "sssd",
    "jacobi:block=4",
    "lookahead:window=3,ngram=3,guesses=3",
    "token_recycling",
    "pia",
    "rest",
    "draft_model:verification=follow,budget=false,max_draft_tokens=3",
    "specdec_pp:verification=follow,budget=false,max_draft_tokens=3",
    "ouroboros",
)
BATCH, BLOCK, MAX_TOKENS = 8, 32, 400
FUNCTIONS = ("save", "find", "update-item", "api.lookup")


@dataclass(frozen=True)
class Case:
    """A conversation whose answer must be a call."""

    number: int
    schemas: dict[str, dict[str, Any]]
    choice: Any

    @property
    def request(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in self.schemas.items()
        ]
        return {
            "messages": [{"role": "user", "content": f"Call a function for case {self.number}."}],
            "tools": tools,
            "tool_choice": self.choice,
        }

    @property
    def temperature(self) -> float:
        return 0.7 * (self.number % 2)

    def accepts(self, name: str, arguments: str) -> bool:
        """Return whether a call is valid."""
        try:
            return matches(json.loads(arguments), self.schemas[name])
        except (KeyError, ValueError):
            return False


@dataclass
class Figures:
    """Counts of one drafter."""

    drafter: str
    calls: int = 0
    invalid: int = 0
    different: int = 0
    tokens: int = 0
    forwards: int = 0

    def record(self) -> dict[str, Any]:
        per_forward = round(self.tokens / max(1, self.forwards), 3)
        return {**asdict(self), "tokens_per_forward": per_forward}


def cases(count: int) -> Iterator[Case]:
    """Yield conversations with one tool, which the model must call, or with two tools.

    With two tools, the model must call either.
    """
    rng = random.Random(0)
    for number in range(count):
        names = rng.sample(FUNCTIONS, 1 + number % 2)
        named: Any = {"type": "function", "function": {"name": names[0]}}
        schemas = {name: random_schema(rng) for name in names}
        yield Case(number, schemas, named if len(names) == 1 else "required")


def plain_calls(llm: LLM, block: Sequence[Case]) -> tuple[list[Any], list[list[int]]]:
    """Return the calls and the token ids of plain decoding."""
    answer_format = AnswerFormat(llm.tokenizer)
    plans, params = [], []
    for case in block:
        request = case.request
        use = tool_use(request["tools"], request["tool_choice"], parallel=False)
        ids = llm.chat_prompt(request["messages"], tools=request["tools"])
        answers = answer_format.plan(ids, use, AnswerShape(), llm.eos_token_ids)
        plans.append(ChatPlan(llm.tokenizer, ids, answers))
        given = SamplingParams(
            MAX_TOKENS, temperature=case.temperature, seed=case.number, speculation="none"
        )
        params.append(plans[-1].params(given))
    completions = llm.generate([plan.prompt_ids for plan in plans], params)
    messages = [
        plan.with_messages(completion, None).message
        for plan, completion in zip(plans, completions, strict=True)
    ]
    calls = [[(call.name, call.arguments) for call in each.tool_calls] for each in messages if each]
    return calls, [completion.token_ids for completion in completions]


def streamed(client: OpenAI, case: Case, drafter: str) -> tuple[list[tuple[str, str]], Any]:
    """Return the calls of a streamed answer, and the token counts."""
    calls: dict[int, list[str]] = {}
    usage: Any = None
    events: Any = client.chat.completions.create(
        model="model",
        **case.request,
        parallel_tool_calls=False,
        max_tokens=MAX_TOKENS,
        temperature=case.temperature,
        seed=case.number,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"speculation": drafter},
    )
    for event in events:
        usage = event.usage or usage
        for choice in event.choices:
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, ["", ""])
                call[0] += part.function.name or ""
                call[1] += part.function.arguments or ""
    return [(name, arguments) for name, arguments in calls.values()], usage


def measure(client: OpenAI, figures: Figures, block: Sequence[Case], plain: Sequence[Any]) -> None:
    """Stream a block of calls with a drafter, and add them to its counts."""
    with ThreadPoolExecutor(BATCH) as threads:
        answers = list(threads.map(lambda case: streamed(client, case, figures.drafter), block))
    for case, (calls, usage), expected in zip(block, answers, plain, strict=True):
        accepted = usage.completion_tokens_details.accepted_prediction_tokens
        figures.calls += 1
        figures.invalid += len(calls) != 1 or not case.accepts(*calls[0])
        figures.different += calls != expected
        figures.tokens += usage.completion_tokens
        figures.forwards += usage.completion_tokens - accepted


def run(llm: LLM, options: argparse.Namespace, folder: str) -> None:
    """Answer all conversations with every drafter, and write the result."""
    given = list(cases(options.count))
    calls, ids = plain_calls(llm, given[:BLOCK])
    datastore.build(folder, ids, llm.model.model.config.vocab_size, workers=1)
    specs = {"rest": f"rest:datastore={folder}"}
    results = [Figures(name) for name in options.drafters or DRAFTERS]
    settings = Settings(("model",), max_batch=BATCH, allow_drafter=tuple(specs.values()))
    with local_server(llm, settings) as url, openai_client(url) as client:
        for start in range(0, len(given), BLOCK):
            block = given[start : start + BLOCK]
            calls, _ = plain_calls(llm, block)
            for figures in results:
                name, figures.drafter = figures.drafter, specs.get(figures.drafter, figures.drafter)
                measure(client, figures, block, calls)
                figures.drafter = name
            write(options, results)


def write(options: argparse.Namespace, results: Sequence[Figures]) -> None:
    """Print and write the counts so far."""
    records = [figures.record() for figures in results]
    for record in records:
        print(json.dumps(record), flush=True)
    if options.json is not None:
        document = {"model": options.model, "machine": processor(), "results": records}
        if options.json.exists():
            names = [record["drafter"] for record in records]
            others = json.loads(options.json.read_text())["results"]
            records += [record for record in others if record["drafter"] not in names]
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--draft-model")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--drafters", action="append", help="repeatable; default: all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    draft = None if options.draft_model is None else str(demo.draft_of(options.draft_model))
    llm = LLM(
        str(demo.target_of(options.model)),
        draft_model=draft,
        max_batch=BATCH,
        keep_prefixes=BLOCK,
        unpack=True,  # as in the other tables
    )
    with tempfile.TemporaryDirectory() as folder:
        run(llm, options, folder)


if __name__ == "__main__":
    main()
