"""Test grammars: outputs are valid, and bad grammars are refused."""

from __future__ import annotations

import copy
import gc
import json
import re
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, LogitsProcessorList

from paceline import LLM, Completion, SamplingParams, demo, grammars
from paceline.errors import ConfigError
from paceline.integrations.transformers import Strategy
from tests.support.shared import near_copies, with_store

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "kind": {"enum": ["list", "stack", "queue"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "size", "flags"],
    "additionalProperties": False,
}
EXAMPLE = '{"name": "table", "kind": "stack", "size": 12, "flags": [true, false]}'
PROMPTS = [
    f"# {EXAMPLE}\n# {EXAMPLE}\n# ",
    f"def parse(text):\n    return json.loads('{EXAMPLE}')\n\n\n",
    "class Stack:\n",
    "x = ",
]
GUESSES: list[Any] = [
    "sssd:datastore=tiny,max_nodes=16",
    "lookahead:window=4,ngram=4,guesses=4",
    "jacobi:block=6",
    "auto:max_nodes=16",
]
OTHERS = ("prompt_lookup", "token_recycling:max_nodes=16", "pia:max_nodes=16", "rest:max_nodes=16")
GUESSES += [pytest.param(spec, marks=pytest.mark.slow) for spec in OTHERS]
LONGEST = 90


def check(answer: str) -> None:
    """Check that a text is valid under the schema."""
    value = json.loads(answer)
    assert list(value) == ["name", "kind", "size", "flags"]
    assert re.fullmatch("[a-z]{1,8}", value["name"])
    assert value["kind"] in ("list", "stack", "queue")
    assert type(value["size"]) is int
    assert 0 <= value["size"] <= 99
    assert 1 <= len(value["flags"]) <= 3
    assert all(type(flag) is bool for flag in value["flags"])


def engine(spec: str, **options: Any) -> LLM:
    llm = LLM("demo", "none", dtype="float32", **options)
    texts = [llm.tokenizer(text)["input_ids"] for text in (*PROMPTS, EXAMPLE * 4)]
    vocab_size = llm.model.vocab_size
    return LLM(
        "demo",
        with_store(spec, near_copies(texts, vocab_size), vocab_size),
        dtype="float32",
        **options,
    )


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM("demo", "none", dtype="float32")


def params(llm: LLM, **options: Any) -> SamplingParams:
    grammar = grammars.json_schema(llm.tokenizer, SCHEMA, llm.eos_token_ids)
    return SamplingParams(**{"max_new_tokens": LONGEST, "logits_processors": [grammar], **options})


def mixed(llm: LLM, temperature: float) -> list[SamplingParams]:
    """Return parameters with the grammar, and without for one request."""
    constrained = params(llm, temperature=temperature, seed=5)
    return [constrained, constrained, SamplingParams(24, temperature, seed=5), constrained]


@pytest.fixture(scope="module")
def plain_answers(plain: LLM) -> dict[float, list[Completion]]:
    """Return outputs without drafts, by temperature."""
    return {
        temperature: plain.generate(PROMPTS, mixed(plain, temperature))
        for temperature in (0.0, 1.0)
    }


def same(mine: Sequence[Completion], plain: Sequence[Completion]) -> None:
    assert [(out.token_ids, out.finish_reason) for out in mine] == [
        (out.token_ids, out.finish_reason) for out in plain
    ]


@pytest.mark.parametrize("spec", GUESSES)
def test_outputs_are_valid_and_equal_those_without_drafts(
    spec: str, plain: LLM, plain_answers: dict[float, list[Completion]]
) -> None:
    """Check batches that include a request without a grammar, greedy and sampled."""
    llm = engine(spec, max_batch=3)
    for temperature in (0.0, 1.0):
        outs = llm.generate(PROMPTS, mixed(plain, temperature))
        same(outs, plain_answers[temperature])
        for row in (0, 1, 3):
            check(outs[row].text)
            assert outs[row].finish_reason == "stop"
        if spec == "prompt_lookup":
            assert sum(out.stats.accepted_tokens for out in outs) > 5


def test_outputs_without_a_grammar_are_invalid(plain: LLM) -> None:
    """Without the grammar outputs are invalid, so the tests above mean something."""
    for out in plain.generate(PROMPTS, SamplingParams(LONGEST)):
        with pytest.raises(ValueError):  # noqa: PT011 - json's own error, or a wrong value
            check(out.text)


def test_sampled_drafts_of_a_draft_model_follow_the_grammar(plain: LLM) -> None:
    llm = LLM("demo", "draft_model:max_draft_tokens=4", "demo", dtype="float32")
    for seed in range(2):
        for out in llm.generate(PROMPTS, params(llm, temperature=0.9, seed=seed)):
            check(out.text)


def test_several_answers_of_a_prompt_are_all_valid(plain: LLM) -> None:
    (out,) = plain.generate(PROMPTS[:1], params(plain, temperature=1.2, n=3, seed=2))
    assert len({answer.text for answer in out.outputs}) > 1
    for answer in out.outputs:
        check(answer.text)


def test_grammars_combine_with_other_stopping_rules(plain: LLM) -> None:
    """Check the length limit, a stop string and `min_tokens`."""
    (whole,) = plain.generate(PROMPTS[:1], params(plain))
    (cut,) = plain.generate(PROMPTS[:1], params(plain, max_new_tokens=9))
    assert (cut.token_ids, cut.finish_reason) == (whole.token_ids[:9], "length")
    (stopped,) = plain.generate(PROMPTS[:1], params(plain, stop=["kind"]))
    assert (stopped.text, stopped.finish_reason) == (whole.text.partition("kind")[0], "stop")
    with pytest.raises(ConfigError, match="forbid every next token"):
        plain.generate(PROMPTS[:1], params(plain, min_tokens=len(whole.token_ids) + 1))
    (later,) = plain.generate(
        PROMPTS[:1],
        SamplingParams(
            30, min_tokens=20, logits_processors=[grammars.regex(plain.tokenizer, "(ab ?)+")]
        ),
    )
    assert re.fullmatch("(ab ?)+", later.text)
    assert len(later.token_ids) >= 20
    (same_text,) = plain.generate(PROMPTS[:1], params(plain, min_tokens=len(whole.token_ids) - 1))
    assert same_text.token_ids == whole.token_ids


def test_any_eos_token_may_end_a_complete_text(plain: LLM) -> None:
    """No other token may end a text; scores beyond the vocabulary are ignored."""
    vocab = len(plain.tokenizer)
    ids = plain.tokenizer("ab")["input_ids"]
    for ends, extra in ((plain.eos_token_ids, 0), ([1, 7], 77), ([7, 1, vocab + 3], 5)):
        grammar = grammars.regex(plain.tokenizer, "a+", ends)
        narrow = grammar(torch.tensor([ids]), torch.zeros(1, vocab + extra))
        assert narrow.shape == (1, vocab + extra)
        allowed = {
            plain.tokenizer.decode([token])
            for token in torch.nonzero(narrow[0] == 0)[:, 0].tolist()
        }
        assert "a" in allowed
        assert all(set(text) == {"a"} for text in allowed)
        a = plain.tokenizer("a", add_special_tokens=False)["input_ids"]
        after = grammar(torch.tensor([ids + a]), torch.zeros(1, vocab + extra))
        found = set(torch.nonzero(after[0] == 0)[:, 0].tolist()) - set(
            torch.nonzero(narrow[0] == 0)[:, 0].tolist()
        )
        assert found == {token for token in ends if token < vocab}
    ended = grammars.regex(plain.tokenizer, "a", plain.eos_token_ids)
    for more in ([], a, [*a, *plain.eos_token_ids], [*a, *plain.eos_token_ids * 2]):
        left = torch.nonzero(ended(torch.tensor([ids + more]), torch.zeros(1, vocab))[0] == 0)[
            :, 0
        ].tolist()
        assert (left == plain.eos_token_ids) == bool(more)


def test_logits_may_be_narrower_than_the_tokenizer(plain: LLM) -> None:
    assert grammars.json_object(plain.tokenizer)(
        torch.tensor([[3]]), torch.zeros(1, 4001)
    ).shape == (1, 4001)


def test_a_request_resumes_its_grammar_after_preemption(plain: LLM) -> None:
    numbers = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 9},
        "minItems": 70,
        "maxItems": 70,
    }
    grammar = grammars.json_schema(plain.tokenizer, numbers, plain.eos_token_ids)
    requested = [
        SamplingParams(260, temperature, seed=5, logits_processors=[grammar])
        for temperature in (1.0, 0.9)
    ]
    cache_gib = 2 * 184 * plain.model.position_bytes / (1 << 30)
    llm = LLM(
        "demo", "auto:max_nodes=12,budget=false", dtype="float32", max_batch=2, cache_gib=cache_gib
    )
    outs = llm.generate(PROMPTS[2:], requested)
    same(outs, plain.generate(PROMPTS[2:], requested))
    assert [len(json.loads(out.text)) for out in outs] == [70] * 2
    assert llm.load.preemptions > 0


def test_all_kinds_of_grammars(plain: LLM) -> None:
    tokenizer = plain.tokenizer
    made = {
        r"-?[0-9]{1,3}": grammars.regex(tokenizer, r"-?[0-9]{1,3}"),
        r"(yes|no), (yes|no)": grammars.lark(
            tokenizer, 'start: word ", " word\nword: "yes" | "no"'
        ),
        r"true|false": grammars.json_schema(tokenizer, '{"type": "boolean"}'),
        r"(?s).+": grammars.json_schema(tokenizer, True),
    }
    for pattern, grammar in made.items():
        for out in plain.generate(PROMPTS[2:], SamplingParams(60, logits_processors=[grammar])):
            assert re.fullmatch(pattern, out.text), out.text
    text = plain.generate(
        PROMPTS[0], SamplingParams(40, logits_processors=[grammars.json_object(tokenizer)])
    )[0].text
    assert text.startswith("{")
    blank = tokenizer("{\n\n\n", add_special_tokens=False)["input_ids"]
    for schema in (
        {"type": "object"},
        '{"type": "object"}',
    ):  # endless whitespace is not allowed
        grammar, ids = grammars.json_schema(tokenizer, schema), torch.tensor([[3, *blank]])
        grammar(ids[:, :1], torch.zeros(1, 4096))
        with pytest.raises(ConfigError, match="got an answer it cannot follow"):
            grammar(ids, torch.zeros(1, 4096))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda t: grammars.json_schema(t, {"type": "objekt"}),
            r"json_schema: got .* \[Invalid type: objekt\]; expected",
        ),
        (lambda t: grammars.json_schema(t, {"$ref": "#/nope"}), "does not exist"),
        (lambda t: grammars.json_schema(t, {"type": "string", "pattern": "("}), "unclosed group"),
        (lambda t: grammars.json_schema(t, {"not": {"type": "string"}}), "Unimplemented keys"),
        (
            lambda t: grammars.json_schema(t, {"type": "integer", "minimum": 3, "maximum": 1}),
            "Unsatisfiable",
        ),
        (lambda t: grammars.json_schema(t, False), "expected one that llguidance accepts"),
        (lambda t: grammars.json_schema(t, []), "Expecting object schema"),  # type: ignore[arg-type]
        (
            lambda t: grammars.json_schema(t, '{"type": "string"'),
            'json_schema: got \'{"type": "string"\'',
        ),
        (lambda t: grammars.json_schema(t, 'true }], "other": [{'), "json_schema: got"),
        (lambda t: grammars.json_schema(t, {"const": object()}), "not JSON serializable"),
        (lambda t: grammars.json_schema(t, {"const": float("nan")}), "json_schema: got"),
        (lambda t: grammars.json_schema(t, "[" * 100_000), "json_schema: got"),
        (lambda t: grammars.regex(t, "(a"), "unclosed group"),
        (lambda t: grammars.regex(t, "(?=a)b"), "look-around"),
        (lambda t: grammars.regex(t, 3), "regex: got a int; expected a text"),  # type: ignore[arg-type]
        (lambda t: grammars.lark(t, "start: other"), "unknown name"),
        (
            lambda t: grammars.json_object(t, []),
            "eos_token_ids: got .*; expected at least one of the tokenizer's tokens",
        ),
        (lambda t: grammars.json_object(t, [4096]), r"eos_token_ids: got \[4096\]"),
        (
            lambda t: grammars.json_object(None),
            "got a tokenizer of type NoneType; expected a fast transformers tokenizer",
        ),
    ],
)
def test_bad_grammars_are_refused_at_once(call: Any, words: str, plain: LLM) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        call(plain.tokenizer)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_grammar_refuses_ids_of_another_sequence(plain: LLM) -> None:
    """Check several rows, and ids that do not continue the previous ones."""
    grammar = grammars.json_object(plain.tokenizer)
    with pytest.raises(ConfigError, match=r"got ids of shape \(2, 1\)"):
        grammar(torch.tensor([[3], [4]]), torch.zeros(2, 4096))
    grammar(torch.tensor([[3, 4]]), torch.zeros(1, 4096))
    for ids in ([3, 5], [3, 5, 6], [3]):
        with pytest.raises(ConfigError, match="do not continue the previous ids"):
            grammar(torch.tensor([ids]), torch.zeros(1, 4096))
    copied = copy.copy(grammar)
    assert copied(torch.tensor([[3]]), torch.zeros(1, 4096)).shape == (1, 4096)


def test_tokenizers_are_compiled_once_and_released() -> None:
    """Threads share a compiled tokenizer, and the number of grammars is limited."""
    tokenizer = AutoTokenizer.from_pretrained(demo.TARGET)
    made: list[Any] = []
    threads = [
        threading.Thread(target=lambda one=tokenizer: made.append(grammars.json_object(one)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (compiled,) = grammars._known[tokenizer].values()
    assert len({id(grammar._template) for grammar in made}) == 1
    for number in range(40):
        grammars.regex(tokenizer, f"a{{{number + 1}}}")
    assert len(compiled._grammars) == grammars._MAX_GRAMMARS
    tokenizer.add_tokens(["<other>"])
    assert grammars.json_object(tokenizer)._vocab_size == 4097
    gone = weakref.ref(tokenizer)
    del tokenizer, compiled
    made.clear()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("strategy", [None, "prompt_lookup"])
def test_grammars_work_in_generate_of_transformers(plain: LLM, strategy: str | None) -> None:
    """Each call takes a copy for one prompt; several prompts are refused."""
    model, tokenizer = plain.model.model, plain.tokenizer
    grammar = grammars.json_schema(tokenizer, SCHEMA, plain.eos_token_ids)
    options = {} if strategy is None else {"custom_generate": Strategy(strategy)}
    for index in (0, 2):
        ids = tokenizer(PROMPTS[index], return_tensors="pt")["input_ids"]
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LONGEST,
            do_sample=False,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([copy.copy(grammar)]),
            **options,
        )
        (expected,) = plain.generate([ids[0].tolist()], params(plain))
        assert out[0, ids.shape[1] :].tolist() == expected.token_ids
    twice = torch.cat([ids, ids.flip(1)])
    with pytest.raises(ConfigError, match="expected one answer"):
        model.generate(
            twice,
            attention_mask=torch.ones_like(twice),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([copy.copy(grammar)]),
            **options,
        )


class ForbiddenToken:
    """Logits processor that selects a token which the grammar forbids."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return torch.where(torch.arange(scores.shape[-1]) == 9, 1e9, -torch.inf)[None]


def test_selecting_a_forbidden_token_ends_the_request(plain: LLM) -> None:
    grammar = grammars.json_object(plain.tokenizer)
    with pytest.raises(ConfigError, match="got an answer it cannot follow"):
        plain.generate(
            PROMPTS[:1], SamplingParams(8, logits_processors=[grammar, ForbiddenToken()])
        )
