"""From tokens to text: pieces joined are the text of the whole, and stop strings are found where they end."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerFast

from paceline.engine.detokenizer import Detokenizer
from paceline.engine.text import StopStrings
from tests.support.models import byte_tokenizer, piece_tokenizer


def spaced_tokenizer() -> Any:
    """In the manner of SentencePiece: a leading space belongs to the token and is dropped at the start of a text."""
    words = ["<unk>", "</s>", "▁the", "▁cat", "s", "▁", "▁ü", "é", "🙂", "\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: place for place, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = Metaspace()
    decoders = tokenizers.decoders
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )


class Foreign:
    """A tokenizer of another library: it can decode, and no more."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def __getattr__(self, name: str) -> Any:
        if name == "backend_tokenizer":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._inner(*arguments, **options)


TOKENIZERS: dict[str, Any] = {"bytes": byte_tokenizer(), "pieces": piece_tokenizer(), "spaced": spaced_tokenizer()}
TOKENIZERS |= {f"foreign {name}": Foreign(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["hello world", " two  spaces ", "naïve café", "日本語の", "a🙂b 👩‍👧 🇩🇪", "line\n\n\t"])
def test_pieces_joined_are_the_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    if name.endswith("pieces"):
        text = "".join(char for char in text if char in "abcdefghijklmnopqrstuvwxyz ")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    got = pieces(tokenizer, ids)
    assert "".join(got) == tokenizer.decode(ids, skip_special_tokens=True)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in got)


@pytest.mark.parametrize("name", ["bytes", "pieces", "foreign bytes"])
@given(data=st.data())
def test_any_tokens(name: str, data: st.DataObject) -> None:
    """Bytes that are no text, special tokens in the middle, halves of characters at the end."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=40))
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


WORDS = [[token] for token in range(10)]
CHARACTERS = [[10 + byte for byte in char.encode()] for char in "\nä日🚲"]


@given(st.lists(st.sampled_from(WORDS + CHARACTERS)))
def test_any_words_and_whole_characters(parts: list[list[int]]) -> None:
    """Byte fallback spoils a whole run of bytes where one is wrong, also in `decode`; so only whole characters here."""
    tokenizer = TOKENIZERS["spaced"]
    ids = [token for part in parts for token in part]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_half_a_character_is_held_back() -> None:
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer("a🙂")["input_ids"]
    assert len(ids) == 5
    assert pieces(tokenizer, ids) == ["a", "", "", "", "🙂", ""]
    assert pieces(tokenizer, ids[:-1]) == ["a", "", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_a_flush_ends_and_leaves_nothing() -> None:
    detokenizer = Detokenizer(TOKENIZERS["spaced"])
    assert [detokenizer.push(2), detokenizer.push(3)] == ["the", " cat"]
    assert (detokenizer.flush(), detokenizer.flush()) == ("", "")
    assert detokenizer.push(4) == "s"


@given(st.data())
def test_a_stop_string_is_found_at_the_token_that_completes_it(data: st.DataObject) -> None:
    """Never earlier, never later: as looking at the whole text after every token."""
    tokenizer = TOKENIZERS["pieces"]
    ids = data.draw(st.lists(st.integers(60, 120), min_size=1, max_size=30))
    text = tokenizer.decode(ids)
    start = data.draw(st.integers(0, len(text) - 1))
    stops = [text[start : start + data.draw(st.integers(1, 5))], "zq"]
    finder = StopStrings(stops, tokenizer)
    first = next(size for size in range(1, len(ids) + 1) if any(stop in tokenizer.decode(ids[:size]) for stop in stops))
    assert [finder.ends(ids[:size]) for size in range(1, first + 1)] == [False] * (first - 1) + [True]


def test_stop_strings_cut_before_the_earliest() -> None:
    finder = StopStrings(("\n\n", "END", "EN"), TOKENIZERS["bytes"])
    assert finder.cut("one END two\n\n") == "one "
    assert finder.cut("nothing here") == "nothing here"
    assert finder.cut("\n\nEND") == ""


@pytest.mark.parametrize(
    ("text", "held"), [("abc", 0), ("abcE", 1), ("abcEN", 2), ("E", 1), ("", 0), ("abc\n", 1), ("ENE", 1), ("xENDx", 0)]
)
def test_what_could_become_a_stop_string_is_held_back(text: str, held: int) -> None:
    assert StopStrings(("\n\n", "END"), TOKENIZERS["bytes"]).held_back(text) == held


def test_a_stop_string_across_characters_of_several_bytes() -> None:
    tokenizer = TOKENIZERS["bytes"]
    finder = StopStrings(("é🙂",), tokenizer)
    ids = tokenizer("café🙂!")["input_ids"]
    ends = [finder.ends(ids[:size]) for size in range(1, len(ids) + 1)]
    assert ends.index(True) == len("café🙂".encode()) - 1
