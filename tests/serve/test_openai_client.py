"""Test the official `openai` client: its results equal those of the library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from paceline import LLM, SamplingParams
from tests.support.serving import Served

PROMPT = "def add(a, b):"
MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
GREEDY = SamplingParams(12, speculation="none")
SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_models(client: Any, llm: LLM) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.model_extra) == ("demo", {"max_model_len": llm.max_length})
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(NotFoundError, match="is not served"):
        client.models.retrieve("gpt-4")


def test_completions(client: Any, llm: LLM) -> None:
    """Check texts and token ids, one prompt and several, echo, and token counts."""
    ids = llm.tokenizer(PROMPT)["input_ids"]
    (wanted,) = llm.generate(PROMPT, GREEDY)
    for prompt in (PROMPT, ids):
        found = client.completions.create(model="demo", prompt=prompt, max_tokens=12, temperature=0)
        assert found.choices[0].text == wanted.text
        assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (
        len(ids),
        12,
        len(ids) + 12,
    )
    for several in ([PROMPT, "class A:"], [ids, llm.tokenizer("class A:")["input_ids"]]):
        found = client.completions.create(
            model="demo", prompt=several, max_tokens=12, temperature=0, echo=True
        )
        assert found.choices[0].text == PROMPT + wanted.text
        assert [choice.index for choice in found.choices] == [0, 1]
        assert found.choices[1].text.startswith("class A:")


def test_draft_tokens_are_counted(client: Any, llm: LLM) -> None:
    drafter = "draft_model:max_draft_tokens=3"
    (wanted,) = llm.generate(PROMPT, SamplingParams(12, speculation=drafter))
    assert wanted.stats.accepted_tokens > 0
    for speculation, accepted in ((drafter, wanted.stats.accepted_tokens), (False, 0)):
        found = client.completions.create(
            model="demo",
            prompt=PROMPT,
            max_tokens=12,
            temperature=0,
            extra_body={"speculation": speculation},
        )
        assert found.choices[0].text == wanted.text
        assert found.usage is not None
        counts = found.usage.completion_tokens_details
        assert counts is not None
        assert counts.accepted_prediction_tokens == accepted
        assert counts.rejected_prediction_tokens == (
            wanted.stats.drafted_tokens - accepted if accepted else 0
        )


def test_chat(client: Any, llm: LLM) -> None:
    wanted = llm.chat(MESSAGES, GREEDY)
    found = client.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=12, temperature=0
    )
    assert found.choices[0].message.content == wanted.text
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 3?"}],
        }
    ]
    found = client.chat.completions.create(
        model="demo", messages=parts, max_completion_tokens=12, temperature=0
    )
    assert found.choices[0].message.content == wanted.text
    assert found.choices[0].message.role == "assistant"


@pytest.mark.parametrize(
    "drafter",
    [
        None,
        "prompt_lookup:max_draft_tokens=4",
        {"drafter": "lookahead", "window": 5, "max_nodes": 8},
    ],
)
def test_streams_add_up_to_the_whole_output(client: Any, llm: LLM, drafter: object) -> None:
    wanted = llm.chat(MESSAGES, SamplingParams(12, stop=(" the",), speculation="none"))
    events = list(
        client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            max_tokens=12,
            temperature=0,
            stop=[" the"],
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"speculation": drafter},
        )
    )
    choices = [event.choices[0] for event in events if event.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(one.delta.content or "" for one in choices) == wanted.text
    assert [one.finish_reason for one in choices] == [None] * (len(choices) - 1) + [
        wanted.finish_reason
    ]
    assert [event.usage is not None for event in events] == [False] * (len(events) - 1) + [True]
    assert len({event.id for event in events}) == 1
    text = client.completions.create(
        model="demo", prompt=PROMPT, max_tokens=12, temperature=0, stream=True, echo=True
    )
    parts = [event.choices[0] for event in text]
    assert parts[0].text == PROMPT
    assert "".join(part.text for part in parts) == PROMPT + llm.generate(PROMPT, GREEDY)[0].text


def test_seeds_and_several_answers(client: Any, llm: LLM) -> None:
    """Outputs equal those of the library, streamed or not; without a seed they vary."""
    (wanted,) = llm.generate(
        PROMPT, SamplingParams(12, temperature=0.9, top_k=50, seed=-5, n=2, speculation="none")
    )
    fields = {
        "model": "demo",
        "prompt": PROMPT,
        "max_tokens": 12,
        "temperature": 0.9,
        "n": 2,
        "extra_body": {"top_k": 50},
    }
    found = client.completions.create(**fields, seed=-5)
    assert [choice.text for choice in found.choices] == [one.text for one in wanted.outputs]
    texts = ["", ""]
    for event in client.completions.create(**fields, seed=-5, stream=True):
        texts[event.choices[0].index] += event.choices[0].text
    assert texts == [one.text for one in wanted.outputs]
    others = {client.completions.create(**fields).choices[0].text for _ in range(3)}
    assert len(others) > 1


def test_logprobs(client: Any, llm: LLM) -> None:
    (wanted,) = llm.generate(PROMPT, SamplingParams(6, logprobs=3))
    assert wanted.logprobs is not None
    values = [row[token] for row, token in zip(wanted.logprobs, wanted.token_ids, strict=True)]
    fields = {"model": "demo", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 3}
    found = client.completions.create(**fields).choices[0].logprobs
    assert found.token_logprobs == pytest.approx(values, abs=1e-4)
    assert [len(top) for top in found.top_logprobs] == [3] * 6
    assert "".join(found.tokens) == wanted.text
    assert found.text_offset == [len("".join(found.tokens[:index])) for index in range(6)]
    streamed = [
        event.choices[0].logprobs for event in client.completions.create(**fields, stream=True)
    ]
    assert [token for one in streamed for token in one.tokens] == found.tokens
    assert [offset for one in streamed for offset in one.text_offset] == found.text_offset
    chat = client.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
    )
    scored = chat.choices[0].logprobs
    assert scored is not None
    assert scored.content is not None
    assert [len(one.top_logprobs) for one in scored.content] == [2] * 4
    assert all(
        one.logprob == one.top_logprobs[0].logprob for one in scored.content
    )  # greedy decoding selects the most likely token
    assert "".join(one.token for one in scored.content) == chat.choices[0].message.content


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_echo_scores_the_prompt(client: Any, llm: LLM, max_tokens: int) -> None:
    """As with OpenAI, prompt tokens come first, the first without a logprob."""
    ids = llm.tokenizer(PROMPT)["input_ids"]
    (wanted,) = llm.generate(PROMPT, SamplingParams(max_tokens, logprobs=2, prompt_logprobs=2))
    assert wanted.prompt_logprobs is not None
    assert wanted.logprobs is not None
    values = [
        row[token]
        for row, token in zip(wanted.prompt_logprobs[1:], ids[1:], strict=True)
        if row is not None
    ]
    values += [row[token] for row, token in zip(wanted.logprobs, wanted.token_ids, strict=True)]
    fields = {
        "model": "demo",
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": 2,
        "echo": True,
    }
    for prompt in (PROMPT, ids):
        answer = client.completions.create(prompt=prompt, **fields)
        choice = answer.choices[0]
        found = choice.logprobs
        assert (choice.text, choice.finish_reason) == (PROMPT + wanted.text, "length")
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
            len(ids),
            max_tokens,
        )
        assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
        assert found.token_logprobs[1:] == pytest.approx(values, abs=1e-4)
        assert all(2 <= len(top) <= 3 for top in found.top_logprobs[1:])
        assert len(found.tokens) == len(ids) + max_tokens
        assert "".join(found.tokens) == choice.text
        assert found.text_offset == [
            len("".join(found.tokens[:index])) for index in range(len(found.tokens))
        ]
        parts = [
            event.choices[0]
            for event in client.completions.create(prompt=prompt, stream=True, **fields)
        ]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].finish_reason == "length"
        for name in ("tokens", "token_logprobs", "text_offset"):
            streamed = [
                one for part in parts if part.logprobs for one in getattr(part.logprobs, name)
            ]
            assert streamed == getattr(found, name)


def test_several_prompts_are_scored_in_one_request(client: Any, llm: LLM) -> None:
    texts = [PROMPT, "class A:\n    pass", "x"]
    found = client.completions.create(
        model="demo", prompt=texts, max_tokens=0, logprobs=0, echo=True
    )
    for text, choice, wanted in zip(
        texts, found.choices, llm.generate(texts, SamplingParams(0, prompt_logprobs=0)), strict=True
    ):
        assert choice.text == text
        values = [
            value
            for row in wanted.prompt_logprobs or ()
            if row is not None
            for value in row.values()
        ]
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(values, abs=1e-4)


def test_outputs_may_have_no_tokens(client: Any, llm: LLM) -> None:
    """As with OpenAI, the text is empty; the prompt may fill the context."""
    found = client.completions.create(model="demo", prompt=PROMPT, max_tokens=0)
    assert (
        found.choices[0].text,
        found.choices[0].finish_reason,
        found.usage.completion_tokens,
    ) == ("", "length", 0)
    (event,) = client.completions.create(model="demo", prompt=PROMPT, max_tokens=0, stream=True)
    assert (event.choices[0].text, event.choices[0].finish_reason) == ("", "length")
    whole = [5] * llm.max_length
    assert (
        client.completions.create(model="demo", prompt=whole, max_tokens=0).usage.prompt_tokens
        == llm.max_length
    )
    with pytest.raises(BadRequestError, match=f"expected at most {llm.max_length - 1}"):
        client.completions.create(model="demo", prompt=whole, max_tokens=1)


@pytest.mark.parametrize("drafter", [False, "prompt_lookup"])
def test_json_schema(client: Any, drafter: object) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "number", "schema": SCHEMA, "strict": True},
    }
    texts = []
    for temperature in (0, 0.8):
        found = client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            max_tokens=60,
            temperature=temperature,
            seed=1,
            response_format=form,
            extra_body={"speculation": drafter},
        )
        texts.append(found.choices[0].message.content)
        assert json.loads(texts[-1])["n"] in (1, 2)
        assert found.choices[0].finish_reason == "stop"
    assert texts


def test_options_of_vllm(client: Any, llm: LLM) -> None:
    stop = llm.generate(PROMPT, GREEDY)[0].token_ids[3]
    found = client.completions.create(
        model="demo",
        prompt=PROMPT,
        max_tokens=12,
        temperature=0,
        extra_body={"stop_token_ids": [stop], "min_p": 0.1},
    )
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.completion_tokens == 4
    params = SamplingParams(
        12, repetition_penalty=1.3, min_tokens=3, bad_words=["return"], logit_bias={5: -3.0}
    )
    options = {
        "repetition_penalty": 1.3,
        "min_tokens": 3,
        "bad_words": ["return"],
        "ignore_eos": False,
    }
    found = client.completions.create(
        model="demo",
        prompt=PROMPT,
        max_tokens=12,
        temperature=0,
        logit_bias={"5": -3},
        extra_body=options,
    )
    assert found.choices[0].text == llm.generate(PROMPT, params)[0].text


def test_health_and_metrics(server: Served, client: Any, llm: LLM) -> None:
    assert server.get("/health").json() == {"status": "ok", "open": 0}
    before = server.get("/metrics").text
    client.completions.create(model="demo", prompt=PROMPT, max_tokens=5, temperature=0)
    after = server.get("/metrics").text

    def value(text: str, name: str) -> float:
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith(f"paceline:{name}{{")
        )

    def grown(name: str) -> float:
        return value(after, name) - value(before, name)

    assert (
        f'paceline:batch_invariant{{model_name="demo",reason="{llm.invariance.reason}"}}' in after
    )
    assert value(after, "batch_invariant") == float(llm.invariance.on)
    assert grown("request_success_total") == 1
    assert (
        grown("time_to_first_token_seconds_count")
        == grown("e2e_request_latency_seconds_count")
        == 1
    )
    assert grown("request_time_per_output_token_seconds_count") == 1
    assert grown("e2e_request_latency_seconds_sum") >= grown("time_to_first_token_seconds_sum") > 0
    assert grown("generation_tokens_total") == 5
    assert grown("http_requests_total") == 1
    assert value(after, "num_requests_running") == value(after, "num_requests_waiting") == 0
