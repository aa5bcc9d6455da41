"""Test the tokenizer files that are written for GGUF headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, Model, Unigram
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paceline.model.gguf_header import _save_tokenizer


def _merging(first: str, second: str) -> BPE:
    """Return a model that merges two tokens."""
    return BPE(vocab={first: 0, second: 1, first + second: 2}, merges=[(first, second)])


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (_merging("Ġ", "é"), str),
        (_merging(" ", "é"), list),
        (_merging("#version", "é"), list),
        (BPE(vocab={"é": 0}, merges=[]), None),
        (Unigram([("é", 0.0)], 0, False), None),
    ],
)
def test_the_written_tokenizer_is_the_same(tmp_path: Path, model: Model, kind: type | None) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    _save_tokenizer(tokenizer, tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    merges = content["model"].get("merges", [])
    assert [type(merge) for merge in merges] == ([] if kind is None else [kind])
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
