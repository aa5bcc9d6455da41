"""Test draft models whose tokenizer differs from the target's."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paceline import LLM, SamplingParams, demo
from paceline.drafters import create
from paceline.drafters.draft_model import other_tokenizer
from paceline.errors import ConfigError
from paceline.model.loading import load_draft, load_model
from paceline.model.token_map import TokenMap, map_tokens
from paceline.text.retokenizer import RetokenizedText, Retokenizer
from paceline.text.settings import MAX_TAIL_CHARACTERS
from tests.support.models import byte_tokenizer
from tests.support.shared import COUNT, Pair, with_head, without_budget

TEXTS = ["def add(a, b):", "def fib(n):", "Tom has 3 boxes of 12 eggs.", "Write a poem."]
SPECIAL = 3  # pad, bos and eos come first in both tokenizers


def sentencepiece_tokenizer(words: list[str]) -> Any:
    """Return a SentencePiece tokenizer with these tokens after the special ones."""
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", *words])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **special
    )


def reversed_tokenizer(tokenizer: Any) -> Any:
    """Return a SentencePiece tokenizer with a byte-level tokenizer's tokens in reverse order."""
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)[SPECIAL:]
    return sentencepiece_tokenizer([word.replace("\u0120", "\u2581") for word in reversed(words)])


@pytest.fixture(scope="module")
def draft(pair: Pair, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the pair's draft model with the reversed vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    model = copy.deepcopy(pair.draft)
    order = torch.tensor([*range(SPECIAL), *reversed(range(SPECIAL, 256))])
    for end in (model.get_input_embeddings(), model.get_output_embeddings()):
        end.weight = torch.nn.Parameter(end.weight.detach()[order].clone())
    model.save_pretrained(folder)
    reversed_tokenizer(tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("spec", "batch"),
    [
        ("draft_model:other_tokenizer=true", 1),
        ("draft_model:other_tokenizer=true", 3),
        ("draft_model:other_tokenizer=true,max_draft_tokens=3", 3),
        ("auto:other_tokenizer=true", 3),
        pytest.param(
            "draft_model:other_tokenizer=true,max_draft_tokens=3", 1, marks=pytest.mark.slow
        ),
        pytest.param("auto:other_tokenizer=true", 1, marks=pytest.mark.slow),
    ],
)
def test_greedy_answers_equal_the_targets(
    pair: Pair, tokenizer: Any, draft: Path, spec: str, batch: int
) -> None:
    llm = LLM(pair.target, without_budget(spec), draft, tokenizer, max_batch=batch)
    prompts = pair.prompts[::2]
    outs = llm.generate(prompts, SamplingParams(COUNT))
    assert [out.token_ids for out in outs] == pair.answers[::2]
    same = LLM(
        pair.target,
        without_budget(spec.replace("other_tokenizer=true", "other_tokenizer=false")),
        pair.draft,
        tokenizer,
        max_batch=batch,
    ).generate(prompts, SamplingParams(COUNT))
    found, expected = (sum(out.stats.accepted_tokens for out in each) for each in (outs, same))
    assert found > 0.9 * expected > 20


@pytest.fixture(scope="module")
def reversed_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built-in draft model with its tokens in reverse order."""
    folder = tmp_path_factory.mktemp("reversed")
    model, tokenizer = load_model(demo.DRAFT, "float32"), AutoTokenizer.from_pretrained(demo.DRAFT)
    special, size = len(tokenizer.added_tokens_decoder), model.config.vocab_size
    order = [*range(special), *reversed(range(special, size))]
    embedding = model.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(embedding.weight.detach()[order].clone())
    model.tie_weights()
    model.save_pretrained(folder)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["model"]["vocab"] = {
        token: order[number] for token, number in backend["model"]["vocab"].items()
    }
    tokenizer.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    return folder


@pytest.mark.parametrize("spec", ["draft_model:max_draft_tokens=3,", "auto:"])
def test_drafts_of_text(reversed_draft: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    """Check drafts by text, although the tokenizers share all tokens, in a mixed batch."""
    monkeypatch.setattr(other_tokenizer, "MIN_SHARED_RATE", 2.0)
    spec = without_budget(spec)
    other = spec + ",other_tokenizer=true"
    params = [SamplingParams(16, temperature, seed=1) for temperature in (0.0, 1.0, 0.0, 1.0)]
    if spec.startswith("draft"):
        spec, other = spec + ",verification=follow", other + ",verification=follow"
    plain, same, outs = (
        LLM(demo.TARGET, each, model, dtype="float32", max_batch=3).generate(TEXTS, params)
        for each, model in (("none", None), (spec, demo.DRAFT), (other, reversed_draft))
    )
    assert [out.token_ids for out in outs] == [out.token_ids for out in plain]
    found, expected = (sum(out.stats.accepted_tokens for out in each[::2]) for each in (outs, same))
    assert found > 0.7 * expected > 10


@pytest.mark.parametrize("spec", ["draft_model:max_draft_tokens=4,", "auto:budget=false,"])
def test_few_shared_tokens(pair: Pair, tokenizer: Any, spec: str) -> None:
    """Check a target of bytes with a draft model of words, which share few tokens."""
    llm = LLM(pair.target, spec + "other_tokenizer=true", demo.DRAFT, tokenizer, max_batch=3)
    outs = llm.generate(pair.prompts[:6], SamplingParams(COUNT))
    assert [out.token_ids for out in outs] == pair.answers[:6]
    assert sum(out.stats.draft_forwards for out in outs) > 0


def test_growing_text_is_retokenized() -> None:
    """Check that older text is final and that an unfinished character waits."""
    target, draft = byte_tokenizer(), AutoTokenizer.from_pretrained(demo.DRAFT)
    text = RetokenizedText(Retokenizer(target, draft, len(target), len(draft)))
    words = "ab cdé " * MAX_TAIL_CHARACTERS
    token_ids = target(words)["input_ids"]
    assert text.update(token_ids[:5]) == draft("ab cd")["input_ids"]
    text.update(token_ids[:6])
    assert not text.complete
    assert text.update(token_ids[:7]) == draft("ab cdé")["input_ids"]
    assert text.complete
    for end in (*range(8, len(token_ids), 50), len(token_ids)):
        ids = text.update(token_ids[:end])
    assert ids == draft(words)["input_ids"]
    assert text.final > len(ids) / 2


def test_drafts_are_retokenized_for_the_target() -> None:
    target, draft = (
        byte_tokenizer(),
        sentencepiece_tokenizer(["\u2581", *map(chr, range(0x21, 0x7F)), "<0xC3>"]),
    )
    converter = Retokenizer(target, draft, len(target), len(draft))
    ids = draft.get_vocab()
    drafted = [ids["a"], ids["\u2581"], ids["b"]]
    assert converter.target_ids(drafted) == target("a b")["input_ids"]
    assert converter.target_ids([ids["\u2581"], *drafted]) == target(" a b")["input_ids"]
    assert converter.target_ids([*drafted, ids["<0xC3>"]]) == target("a b")["input_ids"]
    assert converter.target_ids([ids["a"], ids["</s>"], ids["b"]]) == [
        *target("a")["input_ids"],
        target.eos_token_id,
    ]
    assert converter.target_ids([ids["<s>"], ids["a"]]) == []
    limited = Retokenizer(target, draft, target("b")["input_ids"][0], len(draft))
    assert limited.target_ids([ids["a"], ids["b"], ids["a"]]) == target("a")["input_ids"]


@pytest.mark.parametrize("verification", ["follow", "reject", "traverse"])
def test_sampled_answers(pair: Pair, tokenizer: Any, draft: Path, verification: str) -> None:
    """Check that `follow` keeps a seed's text and that every method accepts drafts."""
    spec = f"draft_model:other_tokenizer=true,max_draft_tokens=3,verification={verification}"
    params = [SamplingParams(12, 1.0, seed=seed) for seed in range(4)]
    plain, outs = (
        LLM(pair.target, each, model, tokenizer).generate(pair.prompts[:4], params)
        for each, model in (("none", None), (spec, draft))
    )
    same = [out.token_ids for out in outs] == [out.token_ids for out in plain]
    assert same or verification != "follow"
    assert sum(out.stats.accepted_tokens for out in outs) > 10


def test_map_of_two_tokenizers() -> None:
    target = byte_tokenizer()
    draft = sentencepiece_tokenizer(
        ["a", "\u2581", "<0x21>", "th", *map(chr, range(0x22, 0x61)), "bcd", *"bcdefgh"]
    )
    with pytest.raises(ConfigError, match=r"with 7. common tokens; expected at least 95"):
        map_tokens(target, draft, 256, 128)
    letters = [chr(code) for code in range(0x22, 0x7F)]
    draft = sentencepiece_tokenizer(["\u2581", "<0x21>", "<0xC3>", "th", *letters])
    shared = map_tokens(target, draft, 300, 128)
    vocabulary, others = target.get_vocab(), draft.get_vocab()
    pairs = dict(zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True))
    assert pairs[vocabulary["\u0120"]] == others["\u2581"]
    assert pairs[vocabulary["!"]] == others["<0x21>"]
    assert pairs[vocabulary["Ã"]] == others["<0xC3>"]  # a byte, not the character
    assert pairs[target.eos_token_id] == draft.eos_token_id
    assert others["th"] not in pairs.values()
    assert shared.readable(np.array([vocabulary["b"], 299])).tolist() == [
        others["b"],
        draft.eos_token_id,
    ]


def test_logits_use_the_targets_ids() -> None:
    shared = TokenMap(np.array([1, 4]), np.array([2, 0]), 6, np.zeros(6, dtype=np.int64))
    probs = shared.logits(torch.tensor([[1.0, 9.0, 3.0]])).softmax(-1)[0]
    assert torch.equal(probs.nonzero()[:, 0], torch.tensor([1, 4]))
    torch.testing.assert_close(probs[[1, 4]], torch.tensor([3.0, 1.0]).softmax(-1))
    with pytest.raises(ConfigError, match="reduced vocabulary for a target with another tokenizer"):
        shared.reduced(np.array([1]))


@pytest.mark.parametrize("spec", ["draft_model", "auto", "ouroboros", "specdec_pp"])
def test_drafters_without_the_option_refuse_the_pair(
    pair: Pair, tokenizer: Any, draft: Path, spec: str
) -> None:
    model = load_draft(draft)
    if spec == "specdec_pp":
        spec = with_head(spec, model)
    with pytest.raises(ConfigError, match="draft_model:other_tokenizer=true or auto:other_") as one:
        LLM(pair.target, spec, model, tokenizer)
    assert "\n" not in str(one.value)


@pytest.mark.parametrize("spec", ["ouroboros", "specdec_pp"])
def test_the_option_belongs_to_two_drafters(spec: str) -> None:
    with pytest.raises(ConfigError, match="other_tokenizer"):
        create(f"{spec}:other_tokenizer=true")


def test_unmappable_tokenizers_are_refused(pair: Pair, tokenizer: Any, draft: Path) -> None:
    with pytest.raises(ConfigError, match="whose tokens have fixed texts for the draft"):
        LLM(pair.target, "draft_model:other_tokenizer=true", pair.draft, tokenizer)
