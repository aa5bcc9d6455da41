"""Test that stop strings are found with their last token and cut from the text."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.origin import Origin
from paceline.sampling.stream_writer import StreamWriter
from paceline.text.stop_strings import StopStrings
from tests.support.tokenizers import FALLBACK, FOREIGN, LOCAL, random_text, whole_text

ALL: dict[str, Any] = {**LOCAL, **FALLBACK, **FOREIGN}


def first_end(stops: StopStrings, ids: list[int], prompt: list[int]) -> int | None:
    """Return the number of tokens after which `stops` ends an answer, token by token."""
    return next(
        (
            size
            for size in range(1, len(ids) + 1)
            if stops.ends([*prompt, *ids[: size - 1]], [ids[size - 1]])
        ),
        None,
    )


def write_steps(
    tokenizer: Any, ids: list[int], stop: tuple[str, ...], prompt: list[int], steps: random.Random
) -> list[str]:
    """Return the text of each step of a stream, with one to five tokens a step."""
    stops = StopStrings(stop, tokenizer, prompt)
    writer, written, index = StreamWriter(tokenizer, prompt, stops), [], 0
    while index < len(ids):
        step = ids[index : index + steps.randint(1, 5)]
        index += len(step)
        parts = writer.write(step, [Origin.TARGET] * len(step), last=index == len(ids))
        written.append("".join(text for text, _ in parts))
    assert writer.text == "".join(written)
    return written


@pytest.mark.parametrize("name", ALL)
def test_stop_string_ends_with_its_last_token(name: str) -> None:
    """Compare with a search of the whole text after every token.

    A stream shows no part of the stop string.
    """
    tokenizer, chance, found = ALL[name], random.Random(f"stop {name}"), 0
    for _ in range(60):
        ids = tokenizer(random_text(chance), add_special_tokens=False)["input_ids"]
        first = chance.randint(0, max(0, len(ids) - 1))
        prompt, answer = ids[:first], ids[first:]
        starts = [whole_text(tokenizer, prompt, skip) for skip in (True, False)]
        texts = [
            [whole_text(tokenizer, ids[: first + size], skip) for skip in (True, False)]
            for size in range(1, len(answer) + 1)
        ]
        if not texts or not all(
            text.startswith(start)
            for pair in texts
            for text, start in zip(pair, starts, strict=True)
        ):
            continue  # the prompt ends within a character
        texts = [
            [text[len(start) :] for text, start in zip(pair, starts, strict=True)] for pair in texts
        ]
        text = texts[-1][0].rstrip("\N{REPLACEMENT CHARACTER}") or "x"
        begin = chance.randrange(len(text))
        stop = (text[begin : begin + chance.randint(1, 4)], "zq")
        due = next(
            (
                size
                for size, pair in enumerate(texts, 1)
                if any(one in text for one in stop for text in pair)
            ),
            None,
        )
        assert first_end(StopStrings(stop, tokenizer, prompt), answer, prompt) == due
        if due is not None and stop[0] in texts[due - 1][0]:
            found += 1
            shown = "".join(write_steps(tokenizer, answer[:due], stop, prompt, chance))
            assert shown == texts[due - 1][0][: texts[due - 1][0].index(stop[0])], (
                prompt,
                answer[:due],
                stop,
                texts[due - 1],
            )
    assert found > 20


@pytest.mark.parametrize(
    "name",
    ["bytes", "llama", "unigram", "wordpiece", "cleaned wordpiece", "metaspace", "foreign llama"],
)
def test_hidden_special_token_as_stop_string(name: str) -> None:
    tokenizer = ALL[name]
    the, cat = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (" the", " cat"))
    ids = [*the, *cat, 2, *the]
    size = len(the) + len(cat) + 1
    assert first_end(StopStrings(("</s>",), tokenizer), ids, []) == size
    assert "".join(
        write_steps(tokenizer, ids[:size], ("</s>",), [], random.Random(0))
    ) == tokenizer.decode([*the, *cat])


@pytest.mark.parametrize(
    ("stop", "end", "shown"),
    [
        ("</s>", 4, "abc"),
        ("c</s>", 4, "ab"),
        ("</s></s>a", 6, "abc"),
        ("s></s", 5, "abc"),
        ("bc", 3, "a"),
        ("ca", 6, "ab"),
        ("c</s>d", None, "abcad"),
        ("ad", 7, "abc"),
    ],
)
def test_stop_strings_around_special_tokens(stop: str, end: int | None, shown: str) -> None:
    """Check stop strings that start before a special token or end after it.

    The text without the special token counts, too.
    """
    tokenizer = ALL["llama"]
    ids = [
        tokenizer.convert_tokens_to_ids(token)
        for token in ("a", "b", "c", "</s>", "</s>", "a", "d")
    ]
    assert first_end(StopStrings((stop,), tokenizer), ids, []) == end
    for seed in range(5):
        assert "".join(write_steps(tokenizer, ids[:end], (stop,), [], random.Random(seed))) == shown


def test_repeated_checks_agree() -> None:
    """Check runs token by token and as a whole, and steps repeated with other tokens."""
    tokenizer = ALL["llama"]
    a, b, c = (tokenizer.convert_tokens_to_ids(token) for token in "abc")
    stops = StopStrings(("bc",), tokenizer, [a])
    assert [stops.ends([a, a], [b]), stops.ends([a, a], [b, c]), stops.ends([a, a], [b, c])] == [
        False,
        True,
        True,
    ]
    assert [stops.ends([a, a], [b]), stops.ends([a, a], [b, b]), stops.ends([a, a, b, b], [c])] == [
        False,
        False,
        True,
    ]
    assert stops.ends([a, c, b], [b]) is False


def test_stop_string_must_start_in_the_answer() -> None:
    tokenizer = ALL["llama"]
    a, b = (tokenizer.convert_tokens_to_ids(token) for token in "ab")
    assert first_end(StopStrings(("ab",), tokenizer, [a]), [b, a, b], [a]) == 3


def test_stream_holds_back_the_start_of_a_stop_string() -> None:
    tokenizer = LOCAL["bytes"]
    ids = tokenizer("one \n ENx é")["input_ids"]
    writer = StreamWriter(tokenizer, [], StopStrings(("\n\n", "END", "é🙂"), tokenizer))
    written = [writer.write([token], [Origin.TARGET], token is ids[-1]) for token in ids]
    assert [[text for text, _ in step] for step in written[4:]] == [
        [],
        ["\n", " "],
        [],
        [],
        ["E", "N", "x"],
        [" "],
        [],
        ["é"],
    ]
    assert [mark.step for step in written for _, mark in step] == [
        *range(1, len(ids) - 1),
        len(ids),
    ]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("abc", 0),
        ("abcE", 1),
        ("abcEN", 2),
        ("E", 1),
        ("", 0),
        ("abc\n", 1),
        ("ENE", 1),
        ("xENDx", 0),
    ],
)
def test_possible_stop_strings_are_held_back(text: str, held: int) -> None:
    assert StopStrings(("\n\n", "END"), LOCAL["bytes"]).held_back(text) == held


@given(st.data())
def test_random_stop_strings(data: st.DataObject) -> None:
    tokenizer = LOCAL["pieces"]
    ids = data.draw(st.lists(st.integers(60, 120), min_size=1, max_size=30))
    text = tokenizer.decode(ids)
    start = data.draw(st.integers(0, len(text) - 1))
    stops = [text[start : start + data.draw(st.integers(1, 5))], "zq"]
    first = next(
        size
        for size in range(1, len(ids) + 1)
        if any(stop in tokenizer.decode(ids[:size]) for stop in stops)
    )
    assert first_end(StopStrings(stops, tokenizer), ids, []) == first
