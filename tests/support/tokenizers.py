"""Small tokenizers of every kind, and texts whose characters they split."""

from __future__ import annotations

import random
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.text.detokenizer import REPLACEMENT
from tests.support.models import byte_tokenizer, piece_tokenizer

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_end|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = [
    "▁",
    "▁▁",
    "▁the",
    "the",
    "▁cat",
    "s",
    "▁.",
    ".",
    ",",
    "'",
    "▁'",
    "n't",
    "▁n",
    "t",
    "é",
    "▁ü",
    "日",
    "🙂",
    "\n",
]
WORDS += [
    char for char in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSUTVWXYZ:!?" if char not in WORDS
]
PARTS = "the cat s ##s ##at sat . , ' n t ##t n't ve m re ! ? 你 好 日 é ##é on a ##n don it mat"
SCRIPTS = [
    "the cat sat on a mat , don't ? it's",
    "你好世界日本語한국어",
    "🙂😀🦜🦩👩‍👧🇩🇪",
    "e\u0301o\u0308ñçü",
    "∑√“”\n\t ",
    "  .,!'",
]


class ForeignTokenizer:
    """Tokenizer of another library that can only encode and decode.

    Attributes:
        decoded: Number of tokens decoded so far.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.decoded = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        self.decoded += len(token_ids)
        text: str = self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def __len__(self) -> int:
        return len(self._inner)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._inner(*arguments, **options)


class CtrlTokenizer:
    """Tokenizer like that of CTRL: a token that ends in @@ is joined to the next one."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(["he@@", "llo", "wor@@", "ld", "."][token] for token in token_ids).replace(
            "@@ ", ""
        )

    def __len__(self) -> int:
        return 5


def llama_tokenizer(unigram: bool = False, strip: bool = True, **options: Any) -> Any:
    """Return a tokenizer like that of Llama 2.

    Text without a token is encoded as bytes, and the decoder strips a leading space.
    """
    vocabulary = {word: token for token, word in enumerate(SPECIAL + BYTES + WORDS)}
    backend_model: Any = models.BPE(
        vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    if unigram:
        backend_model = models.Unigram(
            [(word, -20.0 if word in BYTES else -1.0) for word in vocabulary],
            unk_id=0,
            byte_fallback=True,
        )
    backend = Tokenizer(backend_model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(steps if strip else steps[:-1])
    return _loaded(backend, **options)


def metaspace_tokenizer(**options: Any) -> Any:
    """Return a tokenizer like that of T5, which drops the first space."""
    backend = Tokenizer(models.Unigram([(word, -1.0) for word in SPECIAL + WORDS], unk_id=0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _loaded(backend, **options)


def wordpiece_tokenizer(cleanup: bool = False, **options: Any) -> Any:
    """Return a tokenizer like that of BERT: "##" continues a word."""
    words = [*SPECIAL, *PARTS.split()]
    backend = Tokenizer(
        models.WordPiece({word: token for token, word in enumerate(words)}, unk_token="<unk>")
    )
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(cleanup=cleanup),
    )
    return _loaded(backend, **options)


def spaced_tokenizer() -> Any:
    """Return a tokenizer without a decoder, whose tokens are joined by spaces."""
    backend = Tokenizer(
        models.WordLevel(
            {word: token for token, word in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return _loaded(backend)


def _loaded(backend: Any, **options: Any) -> Any:
    backend.add_special_tokens(["<|im_end|>"])
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special, **options)


FALLBACK: dict[str, Any] = {
    "llama": llama_tokenizer(),
    "gemma": llama_tokenizer(strip=False),
    "unigram": llama_tokenizer(unigram=True),
    "cleaned unigram": llama_tokenizer(unigram=True, clean_up_tokenization_spaces=True),
}
LOCAL: dict[str, Any] = {
    "bytes": byte_tokenizer(),
    "pieces": piece_tokenizer(),
    "metaspace": metaspace_tokenizer(),
    "cleaned metaspace": metaspace_tokenizer(clean_up_tokenization_spaces=True),
    "wordpiece": wordpiece_tokenizer(),
    "wordpiece with cleanup": wordpiece_tokenizer(cleanup=True),
    "cleaned wordpiece": wordpiece_tokenizer(clean_up_tokenization_spaces=True),
    "spaced": spaced_tokenizer(),
}
FOREIGN: dict[str, Any] = {
    f"foreign {name}": ForeignTokenizer(tokenizer)
    for name, tokenizer in (LOCAL | FALLBACK).items()
    if "clean" not in name
}


def random_text(chance: random.Random) -> str:
    """Return a random text in several scripts."""
    return "".join(chance.choice(chance.choice(SCRIPTS)) for _ in range(chance.randint(1, 24)))


def whole_text(tokenizer: Any, token_ids: list[int], skip_special_tokens: bool = True) -> str:
    """Return the text of all tokens, with U+FFFD for an unfinished end.

    The text itself must contain no U+FFFD.
    """
    text: str = (
        tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens) if token_ids else ""
    )
    if text.count(REPLACEMENT) < 2:
        return text
    finished = max(
        size
        for size in range(len(token_ids))
        if REPLACEMENT not in tokenizer.decode(token_ids[:size], skip_special_tokens=True)
    )
    return whole_text(tokenizer, token_ids[:finished], skip_special_tokens) + REPLACEMENT
