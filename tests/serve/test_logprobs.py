"""Test logprobs and echo: texts, bytes and offsets match the output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.serve.logprobs import AnswerSpelling, chat_logprobs, completion_logprobs
from tests.support.serving import served
from tests.support.tokenizers import FALLBACK, LOCAL
from tests.test_answer_texts import engine


@pytest.fixture(scope="module", params=["llama", "unigram", "cleaned wordpiece", "bytes"])
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """Return a tokenizer's name and a client of a random model."""
    name: str = request.param
    with served(engine(name)) as server, server.client() as client:
        yield name, client


@pytest.mark.parametrize("count", [1, 7, 24])
@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_of_completions_match_the_text(
    kind: tuple[str, Any], count: int, echo: bool
) -> None:
    _, client = kind
    fields = {
        "model": client.models.list().data[0].id,
        "prompt": "the cat",
        "max_tokens": count,
        "seed": 5,
        "logprobs": 3,
    }
    fields |= {"echo": echo, "extra_body": {"ignore_eos": True}}
    found = client.completions.create(**fields).choices[0]
    assert "".join(found.logprobs.tokens) == found.text
    assert found.text.startswith("the cat" if echo else "")
    tokens = found.logprobs.tokens
    assert found.logprobs.text_offset == [
        len("".join(tokens[:index])) for index in range(len(tokens))
    ]
    streamed = [event.choices[0] for event in client.completions.create(**fields, stream=True)]
    assert "".join(one.text for one in streamed) == found.text
    parts = [one.logprobs for one in streamed if one.logprobs is not None]
    for field in ("tokens", "text_offset"):
        assert [value for part in parts for value in getattr(part, field)] == getattr(
            found.logprobs, field
        ), field
    likely = [list(top or {}) for part in parts for top in part.top_logprobs]
    assert likely == [list(top or {}) for top in found.logprobs.top_logprobs]


def test_echoed_token_ids_precede_the_output(kind: tuple[str, Any]) -> None:
    name, client = kind
    ids = (LOCAL | FALLBACK)[name]("the cat", add_special_tokens=False)["input_ids"]
    fields = {
        "model": client.models.list().data[0].id,
        "max_tokens": 9,
        "seed": 7,
        "extra_body": {"ignore_eos": True},
    }
    alone = client.completions.create(**fields, prompt=ids).choices[0].text
    assert (
        client.completions.create(**fields, prompt=ids, echo=True).choices[0].text
        == f"the cat{alone}"
    )


@pytest.mark.parametrize("name", ["llama", "unigram", "bytes"])
def test_each_likely_token_has_its_bytes(name: str) -> None:
    """Check selected and other likely tokens.

    A token that ends within a character has a key different from all others.
    """
    tokenizer = (LOCAL | FALLBACK)[name]
    a, *parts = tokenizer("a😀", add_special_tokens=False)["input_ids"][-5:]
    other = tokenizer("😃", add_special_tokens=False)["input_ids"][-1]
    found = [{token: -0.1, other: -0.5, a: -1.0, 2: -2.0} for token in parts]
    content = chat_logprobs(AnswerSpelling(tokenizer, [a]), parts, found, 4).content
    assert [bytes(one.bytes) for one in content] == [bytes([byte]) for byte in "😀".encode()]
    assert [one.token for one in content] == ["", "", "", "😀"]
    assert [[bytes(likely.bytes) for likely in one.top_logprobs[1:]] for one in content] == [
        [b"\x83", b"a", b""]
    ] * 4
    assert [likely.token for likely in content[-1].top_logprobs] == [
        "😀",
        "😃",
        "\N{REPLACEMENT CHARACTER}a",
        "</s>",
    ]
    listed = completion_logprobs(
        AnswerSpelling(tokenizer, [a]),
        parts[:2],
        [{token: -0.1, parts[2]: -0.2, a: -3.0} for token in parts[:2]],
        5,
    )
    assert listed.top_logprobs[1] == {
        "\N{REPLACEMENT CHARACTER}": -0.1,
        "bytes:\\x98": -0.2,
        "\N{REPLACEMENT CHARACTER}a": -3.0,
    }


def test_an_unfinished_character_belongs_to_the_last_token() -> None:
    tokenizer = FALLBACK["llama"]
    ids = tokenizer("a😀", add_special_tokens=False)["input_ids"][:-1]
    found = [{token: -0.1} for token in ids]
    listed = completion_logprobs(AnswerSpelling(tokenizer), ids, found, 0)
    assert ("".join(listed.tokens), listed.tokens[-1]) == (
        " a\N{REPLACEMENT CHARACTER}",
        "\N{REPLACEMENT CHARACTER}",
    )
    assert (
        completion_logprobs(AnswerSpelling(tokenizer), ids, found, 0, last=False).tokens[-1] == ""
    )


def test_bytes_without_a_character_have_different_keys() -> None:
    tokenizer = FALLBACK["llama"]
    ids = tokenizer("€", add_special_tokens=False)["input_ids"][-2:]
    (likely,) = completion_logprobs(
        AnswerSpelling(tokenizer), ids[:1], [{ids[0]: -0.1, ids[1]: -0.2}], 0
    ).top_logprobs
    assert likely == {"\N{REPLACEMENT CHARACTER}": -0.1, "bytes:\\xac": -0.2}
