"""Test detokenization: the text of single tokens joins to the text of all tokens.

This must hold for every tokenizer and wherever prompt and answer are divided.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.text.detokenizer import REPLACEMENT, Detokenizer
from paceline.text.token_bytes import token_bytes
from tests.support.tokenizers import (
    FALLBACK,
    FOREIGN,
    LOCAL,
    CtrlTokenizer,
    ForeignTokenizer,
    llama_tokenizer,
    random_text,
    whole_text,
)

ALL: dict[str, Any] = {**LOCAL, **FALLBACK, **FOREIGN}
ROUNDS = 200  # texts for each of 20 tokenizers


def pushed_texts(
    tokenizer: Any, ids: list[int], prompt: list[int] | None = None, skip: bool = True
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [], skip)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def check_texts_join(start: str, text: str, whole: str) -> None:
    """Check that the texts of prompt and answer join to the whole text.

    A character divided between the two belongs to the answer.
    """
    if not whole.startswith(start):
        assert start.endswith(REPLACEMENT)
        start = start[:-1]
    assert start + text == whole


def test_texts_cover_the_tokenizers() -> None:
    assert len(ALL) * ROUNDS >= 4000


@pytest.mark.parametrize("name", ALL)
def test_text_divided_at_any_tokens(name: str) -> None:
    """Check prompt and answer of a text that is divided at any two tokens."""
    tokenizer, chance = ALL[name], random.Random(f"texts {name}")
    unfinished = 0
    for _ in range(ROUNDS):
        ids = tokenizer(random_text(chance), add_special_tokens=False)["input_ids"]
        for place in range(0, len(ids), chance.randint(3, 9)):
            ids.insert(place, chance.choice([1, 2]))
        first, last = sorted((chance.randint(0, len(ids)), chance.randint(0, len(ids))))
        prompt, answer = ids[:first], ids[first:last]
        start, whole = whole_text(tokenizer, prompt), whole_text(tokenizer, ids[:last])
        by_windows = token_bytes(tokenizer) is None
        if by_windows and not whole.startswith(
            start
        ):  # divided within a character, or before the prompt's last space would be stripped
            continue
        text = "".join(pushed_texts(tokenizer, answer, prompt))
        unfinished += whole.endswith(REPLACEMENT)
        # the tokens' bytes are unknown
        if name.startswith("foreign") and whole.endswith(REPLACEMENT):
            text, whole, start = (
                text.rstrip(REPLACEMENT),
                whole.rstrip(REPLACEMENT),
                start.rstrip(REPLACEMENT),
            )
        check_texts_join(start, text, whole)
    splits = name.removeprefix("foreign ") in FALLBACK or name.endswith("bytes")
    assert not splits or unfinished > ROUNDS // 20


@pytest.mark.parametrize(
    "name", [*LOCAL, *(f"foreign {name}" for name in LOCAL if f"foreign {name}" in FOREIGN)]
)
@pytest.mark.parametrize("skip", [True, False])
def test_random_tokens(name: str, skip: bool) -> None:
    """Check bytes that are no text, special tokens, and characters cut at both ends."""
    tokenizer, chance = ALL[name], random.Random(f"tokens {name}")
    for _ in range(60):
        ids = [chance.randrange(len(tokenizer)) for _ in range(chance.randint(1, 40))]
        first = chance.randint(0, len(ids))
        start = tokenizer.decode(ids[:first], skip_special_tokens=skip) if first else ""
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        text = "".join(pushed_texts(tokenizer, ids[first:], ids[:first], skip))
        if "clean" in name and not whole.startswith(start):
            continue
        check_texts_join(start, text, whole)
        detokenizer = Detokenizer(tokenizer, [], skip)
        joined = b"".join(detokenizer.spell(token).data for token in ids) + detokenizer.rest().data
        assert joined.decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", FALLBACK)
def test_invalid_bytes_after_words(name: str) -> None:
    """Check that finished characters stay where `decode` replaces a whole run of bytes."""
    tokenizer, chance = FALLBACK[name], random.Random(f"bytes {name}")
    for _ in range(60):
        ids = [chance.randrange(4, len(tokenizer)) for _ in range(chance.randint(1, 40))]
        detokenizer = Detokenizer(tokenizer)
        spelled = [detokenizer.spell(token) for token in ids]
        rest = detokenizer.rest()
        assert detokenizer.flush() == rest.text
        text = "".join(one.text for one in spelled) + rest.text
        assert text == "".join(pushed_texts(tokenizer, ids))
        if "cleaned" not in name:
            assert (b"".join(one.data for one in spelled)).decode(errors="replace") == text
            known = token_bytes(tokenizer)
            assert known is not None
            assert [one.data for one in spelled[1:]] == [known[token].data for token in ids[1:]]


def test_tokenizer_whose_next_token_changes_the_text() -> None:
    """Check a tokenizer that has no spelling of single tokens."""
    chance = random.Random(1)
    for _ in range(200):
        ids = [chance.randrange(5) for _ in range(chance.randint(1, 60))]
        text = "".join(pushed_texts(CtrlTokenizer(), ids))
        assert text == CtrlTokenizer().decode(ids)


@pytest.mark.parametrize("name", ["bytes", "llama", "unigram", "foreign bytes"])
def test_character_appears_with_its_last_token(name: str) -> None:
    tokenizer = ALL[name]
    ids = tokenizer("a😀b", add_special_tokens=False)["input_ids"]
    before = len(ids) - 5
    assert pushed_texts(tokenizer, ids)[before:] == ["", "", "", "😀", "b", ""]
    assert pushed_texts(tokenizer, ids[:-2])[before:] == ["", "", "", REPLACEMENT]


@pytest.mark.parametrize("name", FALLBACK)
def test_finished_characters_stay_before_a_cut_one(name: str) -> None:
    tokenizer = FALLBACK[name]
    ids = tokenizer("好世😀", add_special_tokens=False)["input_ids"]
    assert (
        "".join(pushed_texts(tokenizer, ids[:-1]))
        == ("" if name != "gemma" else " ") + "好世" + REPLACEMENT
    )


def test_hidden_tokens_within_a_character() -> None:
    tokenizer = FALLBACK["llama"]
    ids = tokenizer("好", add_special_tokens=False)["input_ids"]
    assert "".join(pushed_texts(tokenizer, [*ids[:-1], 3, ids[-1]])) == "好"
    assert (
        "".join(pushed_texts(tokenizer, [*ids[:-1], 3, ids[-1]], skip=False))
        == f"{REPLACEMENT}<|im_end|>{REPLACEMENT}"
    )


@pytest.mark.parametrize("prompt", [[], [1], [1, 3, 1]])
def test_first_space_is_stripped_without_text_before(prompt: list[int]) -> None:
    tokenizer = FALLBACK["llama"]
    the = tokenizer.convert_tokens_to_ids("▁the")
    assert pushed_texts(tokenizer, [the, the], prompt) == ["the", " the", ""]
    assert pushed_texts(tokenizer, [the], [*prompt, the]) == [" the", ""]
    shown = [" the", " the", ""] if prompt else ["the", " the", ""]
    assert pushed_texts(tokenizer, [the, the], prompt, skip=False) == shown


def test_flush_starts_afresh_after_the_prompt() -> None:
    tokenizer = FALLBACK["llama"]
    the = tokenizer.convert_tokens_to_ids("▁the")
    detokenizer = Detokenizer(tokenizer)
    assert [
        detokenizer.push(the),
        detokenizer.push(the),
        detokenizer.flush(),
        detokenizer.flush(),
    ] == ["the", " the", "", ""]
    assert detokenizer.push(the) == "the"


def test_ids_without_a_token_have_no_text() -> None:
    """Check ids beyond the tokenizer, which models with a padded vocabulary have."""
    assert pushed_texts(FALLBACK["llama"], [5000, 260]) == ["", "", ""]


@pytest.mark.parametrize(
    "name", ["bytes", "llama", "cleaned unigram", "wordpiece", "cleaned wordpiece", "foreign llama"]
)
def test_peek_returns_the_next_text(name: str) -> None:
    tokenizer, chance = ALL[name], random.Random(name)
    ids = tokenizer(random_text(chance) + " the cat", add_special_tokens=False)["input_ids"]
    detokenizer = Detokenizer(tokenizer, ids[:1])
    for token in ids[1:]:
        expected = detokenizer.peek(token)
        text, data, whole = detokenizer.spell(token)
        if "clean" not in name and data:
            assert (text, data, whole) == expected
        assert expected.text.endswith(text)


def test_hidden_token_has_a_name_and_no_bytes() -> None:
    for name in ("bytes", "llama", "cleaned wordpiece", "foreign wordpiece"):
        assert Detokenizer(ALL[name], [4]).peek(2)[:2] == ("</s>", b"")
        assert Detokenizer(ALL[name], [4]).spell(2)[:2] == ("", b"")


@pytest.mark.parametrize("name", ["bytes", "llama"])
def test_ignored_cleanup_flag_costs_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check Llama 3's `clean_up_tokenization_spaces`, which `decode` ignores with a warning."""
    tokenizer = {"bytes": LOCAL["bytes"], "llama": llama_tokenizer()}[name]
    ids = tokenizer("the cat . do n't", add_special_tokens=False)["input_ids"]
    text = tokenizer.decode(ids)
    monkeypatch.setattr(tokenizer, "clean_up_tokenization_spaces", True)
    monkeypatch.setattr(tokenizer, "decode", None)
    assert "".join(pushed_texts(tokenizer, ids)) == text


@pytest.mark.parametrize("name", FOREIGN)
def test_cost_per_token_does_not_grow(name: str) -> None:
    tokenizer, chance = ForeignTokenizer(FOREIGN[name]), random.Random(name)
    ids = [
        token
        for _ in range(300)
        for token in tokenizer(random_text(chance), add_special_tokens=False)["input_ids"]
    ]
    pushed_texts(tokenizer, ids)
    assert len(ids) > 500
    assert tokenizer.decoded < 40 * len(ids)
