"""Test draft models whose embedding is padded to a size other than the target's.

Draft models with another tokenizer must be refused.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline import LLM, Completion, SamplingParams, datastore, demo
from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.integrations.transformers import Strategy
from paceline.model.pairing import shared_vocabulary
from paceline.model.vocabulary import SharedVocabulary
from paceline.training.acceptance_head.teacher_forcing import AnsweredPrompts, teacher_force
from paceline.training.draft.evaluate import agreements
from paceline.training.text_chunks import TextChunk
from tests.support.models import make
from tests.support.shared import COUNT, Pair, is_fair_sample, reference, with_head, without_budget
from tests.verification.test_distribution import (
    PLAIN,
    PROMPT,
    TRUNCATED,
    exact_distribution,
    plain_answers,
)

SPECS = [
    "draft_model",
    "draft_model:max_draft_tokens=3",
    "specdec_pp:min_draft_tokens=1",
    "ouroboros:gamma=2,window=2,ngram=3",
    "auto:use_draft_model=true",
]
TOKENS, WORDS = 256, 6  # tokens of the pair's tokenizer, and of the model with six words


def padded(model: Any, rows: int, bias: float = 0.0) -> Any:
    """Return a copy with padding rows; `bias` makes the padding tokens likely."""
    padded_pair = copy.deepcopy(model)
    before = padded_pair.get_input_embeddings().num_embeddings
    padded_pair.resize_token_embeddings(rows, mean_resizing=False)
    head = padded_pair.get_output_embeddings()
    if bias and rows > before:
        head.bias = torch.nn.Parameter(
            torch.cat((torch.zeros(before), torch.full((rows - before,), bias)))
        )
    return padded_pair.eval()


@pytest.fixture(scope="module")
def padded_pairs(pair: Pair) -> Callable[[int, int], Pair]:
    """Return a function that pads the pair, with the padded target's answers, each cached."""
    prompts = pair.prompts[::2]

    @functools.cache
    def target(rows: int) -> tuple[Any, list[list[int]]]:
        model = padded(pair.target, rows)
        return model, [reference(model, prompt, COUNT) for prompt in prompts]

    @functools.cache
    def draft(rows: int) -> Any:
        return padded(pair.draft, rows, bias=100.0)

    def padded_pair(target_rows: int, draft_rows: int) -> Pair:
        model, answers = target(target_rows)
        return Pair(model, draft(draft_rows), prompts, answers)

    return padded_pair


@pytest.mark.parametrize(
    ("spec", "target_rows", "draft_rows", "batch"),
    [
        pytest.param(
            spec, *rows, batch, marks=() if spec == SPECS[0] or batch == 3 else pytest.mark.slow
        )
        for spec in SPECS
        for *rows, batch in ((TOKENS, 300, 3), (300, TOKENS, 3), (288, 320, 1))
    ],
)
def test_greedy_answers_equal_the_targets(
    padded_pairs: Callable[[int, int], Pair],
    tokenizer: Any,
    spec: str,
    target_rows: int,
    draft_rows: int,
    batch: int,
) -> None:
    each = padded_pairs(target_rows, draft_rows)
    spec = without_budget(with_head(spec, each.draft))
    llm = LLM(each.target, spec, each.draft, tokenizer, max_batch=batch)
    outs = llm.generate(each.prompts, SamplingParams(COUNT))
    assert [out.token_ids for out in outs] == each.answers
    assert sum(out.stats.accepted_tokens for out in outs) > 20


@pytest.mark.parametrize(
    "spec",
    [
        "draft_model:max_draft_tokens=2",
        *(
            pytest.param(spec, marks=pytest.mark.slow)
            for spec in ("specdec_pp:min_draft_tokens=1", "draft_model")
        ),
    ],
)
def test_rejection_keeps_the_targets_distribution(spec: str) -> None:
    """Check that the draft's distribution is renormalised over the common tokens."""
    draft = padded(make("six_words_draft"), 9, bias=1.0)
    outs = completions_by_seed(without_budget(with_head(spec, draft)), draft, TRUNCATED, 2000)
    assert sum(out.stats.accepted_tokens for out in outs) > 200
    assert is_fair_sample(
        Counter(tuple(out.token_ids[:3]) for out in outs), exact_distribution(TRUNCATED)
    )


def completions_by_seed(
    spec: str, draft: Any, params: SamplingParams, count: int
) -> list[Completion]:
    """Return a completion for every seed below `count`."""
    llm = LLM(make("six_words"), spec, draft, six_word_tokenizer(), max_batch=250)
    each = [dataclasses.replace(params, seed=seed) for seed in range(count)]
    batches = [each[start : start + 250] for start in range(0, count, 250)]
    return [out for batch in batches for out in llm.generate([PROMPT] * len(batch), batch)]


@pytest.mark.parametrize(
    "spec",
    [
        "draft_model:verification=follow",
        "auto:use_draft_model=true",
        "ouroboros:gamma=2,window=1,ngram=3",
    ],
)
def test_seeded_text_under_follow_equals_plain_decoding(spec: str) -> None:
    outs = completions_by_seed(
        without_budget(spec), padded(make("six_words_draft"), 9, bias=1.0), PLAIN, 250
    )
    assert [out.token_ids for out in outs] == plain_answers(PLAIN, 250)


def test_target_may_sample_tokens_the_draft_lacks() -> None:
    """Check that the draft model continues after tokens that only the target has."""
    target = padded(make("six_words"), 9)
    llm = LLM(
        target, "draft_model:max_draft_tokens=2", make("six_words_draft"), six_word_tokenizer()
    )
    params = SamplingParams(12, temperature=2.0, seed=3)
    outs = llm.generate([PROMPT, [*PROMPT, 8, 7]], params)
    assert max(token for out in outs for token in out.token_ids) >= WORDS
    follow = LLM(
        target, "draft_model:verification=follow", make("six_words_draft"), six_word_tokenizer()
    )
    plain = LLM(target, "none").generate([[*PROMPT, 8, 7]], params)[0]
    assert follow.generate([[*PROMPT, 8, 7]], params)[0].token_ids == plain.token_ids


def six_word_tokenizer() -> Any:
    """Return a tokenizer of six words."""
    from tests.support.models import word_tokenizer

    return word_tokenizer(["a", "b", "c"])


def test_logits_use_the_targets_ids() -> None:
    given = torch.arange(24.0).view(2, 12)
    for target_rows in (6, 9, 12, 16):
        shared = SharedVocabulary(5, target_rows, 12)
        found = shared.logits(given.clone())
        assert found.shape == (2, target_rows)
        assert torch.equal(found[:, :5], given[:, :5])
        assert float(found.softmax(-1)[:, 5:].sum()) == 0.0
    assert torch.equal(shared.logits(given[:, :4], num_reduced=3), given[:, :3])
    assert SharedVocabulary(5, 16, 12).readable(np.array([3, 11, 12, 15])).tolist() == [
        3,
        11,
        11,
        11,
    ]
    assert SharedVocabulary(5, 12, 16).readable(np.array([3, 11])).tolist() == [3, 11]


def test_through_generate_of_transformers(pair: Pair, tokenizer: Any, tmp_path: Path) -> None:
    """Check `generate` of transformers with tokenizers from the models' folders."""
    for name, model in (("target", pair.target), ("draft", padded(pair.draft, 320))):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float32).eval()
    ids = torch.tensor([pair.prompts[0]])
    strategy = Strategy("draft_model", str(tmp_path / "draft"))
    out = target.generate(ids, max_new_tokens=COUNT, do_sample=False, custom_generate=strategy)
    assert out[0, ids.shape[1] :].tolist() == pair.answers[0]
    assert strategy.stats[0].accepted_tokens > 0


def reordered_tokenizer(tokenizer: Any, start: int) -> Any:
    """Return a tokenizer with the tokens from `start` on in reverse order."""

    class ReorderedTokenizer:
        added_tokens_decoder = tokenizer.added_tokens_decoder

        def __call__(self, text: str) -> Any:
            return tokenizer(text)

        decode = staticmethod(tokenizer.decode)

        def get_vocab(self) -> dict[str, int]:
            found = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
            names = [name for name, _ in found]
            names[start:] = names[start:][::-1]
            return {name: number for number, name in enumerate(names)}

    return ReorderedTokenizer()


def test_another_tokenizer_is_refused_at_the_same_size(
    pair: Pair, tokenizer: Any, tmp_path: Path
) -> None:
    pair.draft.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    LLM(pair.target, "draft_model", tmp_path, tokenizer)
    with pytest.raises(
        ConfigError,
        match=r"got a tokenizer in which id 100 is '.*'; expected '.*', as in the target's",
    ):
        LLM(pair.target, "draft_model", tmp_path, reordered_tokenizer(tokenizer, 100))
    # the draft model's tokenizer is unknown
    LLM(pair.target, "draft_model", pair.draft, reordered_tokenizer(tokenizer, 100))
    llm = LLM(
        pair.target,
        "none",
        pair.draft.from_pretrained(tmp_path),
        reordered_tokenizer(tokenizer, 100),
    )
    with pytest.raises(ConfigError, match="speculation: draft model: got a tokenizer"):
        llm.generate([pair.prompts[0]], SamplingParams(4, speculation="draft_model"))


def test_names_of_added_tokens_do_not_matter(pair: Pair, tokenizer: Any, tmp_path: Path) -> None:
    """Chat and base models of a family name their reserved tokens differently."""
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    padded(pair.draft, 288).save_pretrained(tmp_path)
    other.save_pretrained(tmp_path)
    LLM(pair.target, "draft_model", tmp_path, tokenizer)


def test_sizes_beyond_padding_are_refused(pair: Pair, tokenizer: Any) -> None:
    for rows, known in ((320, None), (700, tokenizer), (200, tokenizer)):
        with pytest.raises(
            ConfigError,
            match=f"got a vocabulary of {rows} tokens; expected 256, as in the target.*Choose",
        ):
            LLM(pair.target, "draft_model", padded(pair.draft, rows), known)


def test_one_draft_serves_targets_of_one_size(pair: Pair, tokenizer: Any) -> None:
    drafter = create("draft_model", draft_model=pair.draft)
    LLM(pair.target, drafter, tokenizer=tokenizer)
    with pytest.raises(
        ConfigError, match=r"got a target with 300 rows.*Load the draft model again"
    ):
        LLM(padded(pair.target, 300), drafter, tokenizer=tokenizer)


def test_shipped_head_works_with_a_padded_draft() -> None:
    target = AutoModelForCausalLM.from_pretrained(demo.TARGET, dtype=torch.float32)
    draft = padded(AutoModelForCausalLM.from_pretrained(demo.DRAFT, dtype=torch.float32), 4224)
    llm = LLM(target, "specdec_pp:budget=false", draft)
    out = llm.generate([[5, 6, 7, 8]], SamplingParams(16))[0]
    assert out.token_ids == reference(target, [5, 6, 7, 8], 16)


@pytest.mark.parametrize("drafter", ["sssd", "rest", "auto"])
def test_datastore_of_another_padding(
    pair: Pair, tokenizer: Any, tmp_path: Path, drafter: str
) -> None:
    """Check that ids beyond the target's rows end a continuation.

    A datastore whose tokenizer is unknown must be refused.
    """
    prompt, answer = pair.prompts[0], pair.answers[0]
    documents = [[*prompt, *answer[:4], 299, *answer[4:]], [*prompt, *answer[:2], 280]]
    datastore.build(tmp_path / "store", documents, 300, tokenizer=tokenizer, workers=1)
    llm = LLM(pair.target, f"{drafter}:datastore={tmp_path / 'store'}", tokenizer=tokenizer)
    outs = llm.generate(pair.prompts[:2], SamplingParams(COUNT))
    assert [out.token_ids for out in outs] == pair.answers[:2]
    with pytest.raises(ConfigError, match="vocabulary of 300 tokens"):
        LLM(pair.target, f"{drafter}:datastore={tmp_path / 'store'}")


def test_answers_with_ids_beyond_an_updated_datastore(
    pair: Pair, tokenizer: Any, tmp_path: Path
) -> None:
    datastore.build(tmp_path / "store", [[1, 2, 3]], TOKENS, tokenizer=tokenizer, workers=1)
    target = padded(pair.target, 300, bias=100.0)
    llm = LLM(
        target, f"sssd:datastore={tmp_path / 'store'},update_datastore=true", tokenizer=tokenizer
    )
    out = llm.generate([pair.prompts[0]], SamplingParams(8))[0]
    assert min(out.token_ids) >= TOKENS


def test_kept_distributions_of_another_padding(pair: Pair, tokenizer: Any, tmp_path: Path) -> None:
    spec = f"auto:pool_file={tmp_path / 'pool'}"
    llm = LLM(pair.target, spec, tokenizer=tokenizer)
    llm.generate([pair.prompts[0]], SamplingParams(COUNT))
    llm.drafter.save_pool()  # type: ignore[attr-defined]
    for target in (padded(pair.target, 300), pair.target):
        LLM(target, spec, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="vocabulary of 256 tokens; expected 300"):
        LLM(padded(pair.target, 300), spec)


def test_agreement_counts_common_tokens_only(pair: Pair, tokenizer: Any, tmp_path: Path) -> None:
    draft = padded(pair.draft, 320, bias=100.0)
    shared = SharedVocabulary(TOKENS, TOKENS, 320)
    texts = [
        TextChunk(
            np.array([*pair.prompts[0], *pair.answers[0]], dtype=np.int32), len(pair.prompts[0])
        )
    ]
    (own,), (found,) = agreements(pair.draft, texts), agreements(draft, texts, shared=shared)
    assert (own == found).all()
    draft.save_pretrained(tmp_path / "draft")
    tokenizer.save_pretrained(tmp_path / "draft")
    pair.target.save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    models = [
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32).eval()
        for name in ("target", "draft")
    ]
    params = SamplingParams(COUNT, temperature=1.0)
    columns = [
        teacher_force(
            target,
            model,
            AnsweredPrompts(pair.prompts[:1], pair.answers[:1], params),
            0.0,
            1,
            torch.Generator().manual_seed(1),
        )
        for target, model in ((pair.target, pair.draft), models)
    ]
    torch.testing.assert_close(columns[0], columns[1])
    assert shared_vocabulary(models[1], models[0]) == shared
