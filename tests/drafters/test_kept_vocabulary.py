"""Test draft models with a reduced vocabulary and the file that lists their tokens.

Answers and their distribution must stay the target's.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline import LLM, DraftTree, SamplingParams
from paceline.bench import enlarge
from paceline.core.request import Request
from paceline.drafters import create
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import model_identity
from paceline.model.loading import draft_lm, load_draft
from paceline.model.reduced_vocabulary import FILE, ReducedLMHead, keep_tokens, read_kept, save_kept
from tests.support.models import make
from tests.support.shared import COUNT, Pair, is_fair_sample, with_head, without_budget
from tests.verification.test_distribution import (
    ENOUGH,
    EOS,
    PLAIN,
    TRUNCATED,
    answers,
    exact_distribution,
    plain_answers,
    sample,
)

DATA = Path(__file__).parents[1] / "data"
KEPT = [EOS, 3, 4]  # of six tokens
SPECS = [
    "draft_model",
    "draft_model:max_draft_tokens=2",
    "specdec_pp:min_draft_tokens=1",
    "ouroboros:gamma=2,window=1,ngram=3",
    "auto:use_draft_model=true",
]


def reduced(model: Any, token_ids: Sequence[int]) -> Any:
    """Return a copy of the model whose LM head has only these tokens."""
    made = copy.deepcopy(model)
    keep_tokens(made, token_ids)
    return made


def frequent_tokens(pair: Pair) -> list[int]:
    """Return the more frequent half of the tokens in the answers."""
    tokens = [token for answer in pair.answers for token in answer]
    return sorted(set(tokens), key=lambda token: -tokens.count(token))[: len(set(tokens)) // 2]


@pytest.mark.parametrize(
    ("spec", "batch"),
    [
        *((spec, 3) for spec in SPECS),
        (SPECS[0], 1),
        *(pytest.param(spec, 1, marks=pytest.mark.slow) for spec in SPECS[1:]),
    ],
)
def test_greedy_answers_equal_the_targets(pair: Pair, spec: str, batch: int) -> None:
    draft = reduced(pair.draft, frequent_tokens(pair))
    llm = LLM(
        pair.target, without_budget(with_head(spec, pair.draft)), draft_model=draft, max_batch=batch
    )
    outs = llm.generate(pair.prompts[::2], SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in outs] == pair.answers[::2]
    assert sum(out.stats.accepted_tokens for out in outs) > 20


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("draft_model:max_draft_tokens=2", marks=pytest.mark.slow),
        "specdec_pp:min_draft_tokens=1",
    ],
)
def test_rejection_keeps_the_targets_distribution(spec: str) -> None:
    draft = reduced(make("six_words_draft"), KEPT)
    assert is_fair_sample(
        sample(
            create(without_budget(with_head(spec, make("six_words_draft"))), draft_model=draft),
            TRUNCATED,
        ),
        exact_distribution(TRUNCATED),
    )


@pytest.mark.parametrize(
    "spec",
    [
        "draft_model:verification=follow",
        "specdec_pp:verification=follow,min_draft_tokens=1",
        *SPECS[3:],
    ],
)
def test_seeded_text_under_follow_equals_plain_decoding(spec: str) -> None:
    draft = reduced(make("six_words_draft"), KEPT)
    drafter = create(without_budget(with_head(spec, make("six_words_draft"))), draft_model=draft)
    assert answers(drafter, PLAIN, 250, 125) == plain_answers(PLAIN, 250)


class WrongProbs(DraftModel):
    """Draft model that samples reduced tokens but reports probabilities over all tokens."""

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        trees = super().propose(requests, max_nodes)
        flat = torch.full((6,), 0.25 / 6)
        return [
            dataclasses.replace(
                tree,
                probs=[
                    None if probs is None else 0.75 * probs + flat for probs in tree.probs or []
                ],
            )
            for tree in trees
        ]


def test_wrong_draft_probabilities_are_noticed() -> None:
    drafter = WrongProbs(
        DraftModelOptions(max_draft_tokens=3), CachedLM(reduced(make("six_words_draft"), KEPT))
    )
    assert not is_fair_sample(sample(drafter, PLAIN, ENOUGH), exact_distribution(PLAIN))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_removed_tokens_have_probability_zero(pair: Pair, dtype: torch.dtype) -> None:
    model = copy.deepcopy(pair.draft).to(dtype)
    kept = frequent_tokens(pair)
    hidden = torch.randn(3, 5, int(model.config.hidden_size)).to(dtype)
    heads: list[Any] = [one.get_output_embeddings() for one in (model, reduced(model, kept))]
    whole, tokens = (head(hidden) for head in heads)
    assert tokens.shape == whole.shape
    torch.testing.assert_close(tokens[..., sorted(kept)], whole[..., sorted(kept)])
    probs = tokens.float().softmax(-1)
    outside = torch.ones(probs.shape[-1], dtype=torch.bool).index_fill_(
        0, torch.tensor(kept), False
    )
    assert float(probs[..., outside].max()) == 0.0
    allowed = torch.full_like(tokens, -torch.inf)
    allowed[..., outside.nonzero()[:3, 0]] = 0.0
    assert torch.isfinite(
        (tokens.float() + allowed.float()).softmax(-1)
    ).all()  # a grammar may allow only removed tokens


def folder_with(tmp_path: Path, kept: Sequence[int]) -> Path:
    folder = tmp_path / "draft"
    shutil.copytree(DATA / "tiny_noisy_0.05", folder)
    save_kept(folder, kept, int(load_draft(folder).config.vocab_size))
    return folder


def test_reduced_logits_give_the_same_trees(pair: Pair) -> None:
    """Compare greedy requests, which use reduced logits, with a zero bias, which needs all."""
    draft = reduced(pair.draft, frequent_tokens(pair))
    found = []
    for params in (SamplingParams(COUNT), SamplingParams(COUNT, logit_bias={3: 0.0})):
        outs = LLM(pair.target, "draft_model:budget=false", draft_model=draft).generate(
            pair.prompts, params
        )
        found.append(
            [(out.token_ids, out.stats.drafted_tokens, out.stats.target_forwards) for out in outs]
        )
    assert found[0] == found[1]
    assert all(drafted for _, drafted, _ in found[0])


def test_reduced_folder_is_also_a_plain_checkpoint(pair: Pair, tmp_path: Path) -> None:
    kept = frequent_tokens(pair)
    folder = folder_with(tmp_path, kept)
    loaded = load_draft(folder)
    head: Any = loaded.get_output_embeddings()
    assert isinstance(head, ReducedLMHead)
    assert head.token_ids.tolist() == sorted(kept)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.get_output_embeddings().weight.shape[0] == plain.config.vocab_size
    # heads trained for one work with the other
    assert model_identity(loaded) == model_identity(plain)
    assert isinstance(draft_lm(folder).model.get_output_embeddings(), ReducedLMHead)
    outs = LLM(pair.target, "draft_model", folder).generate(
        pair.prompts, SamplingParams(max_new_tokens=COUNT)
    )
    assert [out.token_ids for out in outs] == pair.answers


def test_enlarged_draft_keeps_its_reduced_vocabulary(pair: Pair) -> None:
    draft = reduced(pair.draft, frequent_tokens(pair))
    larger = enlarge(
        draft, 2 * int(draft.config.hidden_size), int(draft.config.num_hidden_layers) + 1
    )
    ids = torch.tensor([pair.prompts[0]])
    with torch.inference_mode():
        torch.testing.assert_close(
            larger(input_ids=ids).logits, draft(input_ids=ids).logits, rtol=1e-3, atol=1e-3
        )


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another token": (
        lambda found: {**found, "token_ids": [9, *found["token_ids"][1:]]},
        "damaged file",
    ),
    "no checksum": (
        lambda found: {name: value for name, value in found.items() if name != "check"},
        "damaged file",
    ),
    "no object": (lambda found: [], "damaged file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    change, rule = DAMAGE[damage]
    save_kept(tmp_path, [3, 5, 8], 100)
    path = tmp_path / FILE
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match=rule):
        read_kept(tmp_path, 100)


def test_a_file_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    assert read_kept(tmp_path, 100) is None
    save_kept(tmp_path, [3, 5, 8], 100)
    assert read_kept(tmp_path, 100) == [3, 5, 8]
    with pytest.raises(ConfigError, match=r"a vocabulary of 100 tokens; expected .* 101 tokens"):
        read_kept(tmp_path, 101)
