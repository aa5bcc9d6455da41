"""Shared test tools: engines, references, statistics."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import itertools
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from paceline import LLM, Drafter, datastore
from paceline.drafters import REGISTRY, available, contract, entry
from paceline.drafters.contract_settings import BUDGETS
from paceline.drafters.specdec_pp.card import INPUTS, new_card
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.model.cached_lm import CachedLM
from tests.support.state_heads import trained_eagle3

COUNT = 40
RAGGED = list(BUDGETS)
# Options that change what a drafter proposes.
VARIANTS = [
    "draft_model:max_draft_tokens=3,branch_threshold=0.02,use_prompt_lookup=true",
    "draft_model:stop_rule=confidence,stop_threshold=0.3",
    "draft_model:stop_rule=heuristic,max_draft_tokens=2",
    "specdec_pp:threshold=0.9,min_draft_tokens=1,max_draft_tokens=6,use_prompt_lookup=true",
    "ouroboros:gamma=4,window=1,ngram=4,max_branches=0,inspiration=code",
    "ouroboros:gamma=12,shared_pool=true",
    "jacobi:block=4",
    "lookahead:window=5,ngram=4,guesses=5,prompt_pool=false",
    "lookahead:window=3,ngram=2,guesses=0,prompt_pool=false",
    "lookahead:window=4,ngram=3,guesses=2,ngrams_per_key=5,reference_mode=true",
    "sssd:datastore=tiny,max_nodes=12",
    "sssd:datastore=tiny,fusion=paper",
    "rest:min_ngram=1,max_matches=1,max_draft_tokens=4,max_nodes=5",
    "pia:max_nodes=6,max_draft_tokens=3,query_ngram=4",
    "auto:budget=true",
    "auto:use_draft_model=true",
    "auto:use_draft_model=true,budget=true,max_nodes=12",
    "auto:state_head=trained",
    "lookahead:budget=true",
    "token_recycling:max_context_ngram=1",
]
SPECS = [*available(), *VARIANTS]
# For tests in which variants seldom behave differently; `make test-all` runs all variants.
MOST_SPECS: list[Any] = [
    *available(),
    *(pytest.param(spec, marks=pytest.mark.slow) for spec in VARIANTS),
]
# Drafters whose proposals are guesses, without draft probabilities.
SAME_SEED = [spec for spec in SPECS if not spec.startswith(("draft_model", "specdec_pp"))]
SAME_SEED += [
    "draft_model:verification=follow",
    "draft_model:verification=follow,max_draft_tokens=3,branch_threshold=0.02,use_prompt_lookup=true",
]
SAME_SEED += [
    "draft_model:verification=follow,stop_rule=heuristic",
    "specdec_pp:verification=follow",
]


@dataclass(frozen=True)
class Pair:
    """A target, a draft model, prompts, and greedy outputs of `COUNT` tokens."""

    target: Any
    draft: Any
    prompts: list[list[int]]
    answers: list[list[int]]

    @property
    def vocab_size(self) -> int:
        """Return the size of the target's vocabulary."""
        size: int = self.target.config.vocab_size
        return size

    def engine(self, spec: str = "none", **options: Any) -> LLM:
        """Return an engine with the drafter `spec` and, if needed, the draft model."""
        needed = has_draft(spec)
        chosen = with_store(
            with_head(without_budget(spec), self.draft), self.near_copies(), self.vocab_size
        )
        if spec.startswith("state_head"):
            chosen = f"{chosen},head=trained"
        if "head=trained" in chosen:
            folder = trained_eagle3(self.target, self.texts())
            chosen = chosen.replace("head=trained", f"head={folder}")
        return LLM(
            self.target, drafter=chosen, draft_model=self.draft if needed else None, **options
        )

    def texts(self) -> tuple[tuple[int, ...], ...]:
        """Return prompts followed by their outputs."""
        return tuple(
            (*prompt, *answer) for prompt, answer in zip(self.prompts, self.answers, strict=True)
        )

    def near_copies(self) -> tuple[tuple[int, ...], ...]:
        """Return all texts twice, with about every tenth token replaced."""
        return near_copies(
            [[*prompt, *answer] for prompt, answer in zip(self.prompts, self.answers, strict=True)]
            * 2,
            self.vocab_size,
        )


def has_draft(spec: str) -> bool:
    """Return whether `spec` needs or requests a draft model."""
    return entry(spec.partition(":")[0]).needs_draft_model or "use_draft_model=true" in spec


def near_copies(texts: Sequence[Sequence[int]], vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Return the texts with about every tenth token replaced at random."""
    chance = random.Random(4)
    return tuple(
        tuple(chance.randrange(vocab_size) if chance.random() < 0.1 else token for token in text)
        for text in texts
    )


def without_budget(spec: str) -> str:
    """Return `spec` with `budget=false`, so that all drafts are verified.

    Specs with an explicit budget, or of drafters without one, are returned as they are.
    """
    name, _, options = spec.partition(":")
    if "budget=" in options or "budget" not in {
        field.name for field in dataclasses.fields(entry(name).load().Options)
    }:
        return spec
    return f"{name}:{','.join(filter(None, [options, 'budget=false']))}"


def with_head(spec: str, draft: Any) -> str:
    """Return `spec` with a random head for `draft` if it needs one."""
    name, _, options = spec.partition(":")
    if name != "specdec_pp" or "head=" in options:
        return spec
    return f"{name}:{','.join(filter(None, [options, f'head={random_head(draft)}']))}"


def with_store(spec: str, documents: tuple[tuple[int, ...], ...], vocab_size: int) -> str:
    """Return `spec` with a store of `documents`.

    Specs that need no store or name another one are returned as they are.
    """
    name, _, options = spec.partition(":")
    if REGISTRY[name].needs_store and "datastore=" not in options:
        options = ",".join(filter(None, [options, "datastore=tiny"]))
    if "datastore=tiny" not in options:
        return spec
    store = f"datastore={tiny_store(documents, vocab_size)}"
    return f"{name}:{options.replace('datastore=tiny', store)}"


@functools.cache
def tiny_store(documents: tuple[tuple[int, ...], ...], vocab_size: int) -> str:
    """Build a store of `documents`; return its folder."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    datastore.build(folder, documents, vocab_size, workers=1)
    return folder


@functools.cache
def random_head(draft: Any) -> str:
    """Save an acceptance head that often rejects drafts; return its folder.

    It has no cost curve, so that no clock affects its decisions.
    """
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    card = new_card("nobody", "a tiny model", draft, depth=1, inputs=INPUTS[1])
    size, noise = card.hidden_size, torch.Generator().manual_seed(5)
    shapes = {
        "blocks.0.weight": (size, size),
        "blocks.0.bias": (size,),
        "last.weight": (2, size + 3),
        "last.bias": (2,),
    }
    tensors = {
        name: torch.randn(shape, generator=noise) / size**0.5 for name, shape in shapes.items()
    }
    tensors["last.bias"] = torch.tensor([0.0, 2.0])
    AcceptanceHead(card, tensors).save(folder)
    return folder


def reference(model: Any, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """Return the output of `model.generate`, greedy by default.

    Results are cached, since many drafters share them.
    """
    hashable = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return list(_reference(model, tuple(prompt), count, tuple(sorted(hashable.items()))))


@functools.lru_cache(maxsize=1024)
def _reference(
    model: Any, prompt: tuple[int, ...], count: int, options: tuple[tuple[str, Any], ...]
) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in options}
    out = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=count, **{"do_sample": False, **settings}
    )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def check_aborts(pair: Pair, drafter: Drafter, budgets: Sequence[int]) -> None:
    """Check that aborted requests leave nothing behind and disturb no other request.

    Requests are aborted before their first proposal, in the middle, and twice.
    """
    contract.check_aborts(CachedLM(pair.target), drafter, pair.prompts, pair.answers, budgets)


def critical_value(freedom: int, deviations: float = 3.7) -> float:
    """Return the chi-square value that one in 10,000 fair samples exceeds.

    The approximation is that of Wilson and Hilferty (1931).
    """
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + deviations * spread**0.5) ** 3)


def is_fair_sample(counts: Mapping[Any, int], chances: Mapping[Any, float]) -> bool:
    """Return whether counts pass Pearson's chi-square test.

    Cells with an expected count below five are pooled, as the test requires. Impossible cells must
    have no counts.
    """
    if any(chances.get(cell, 0.0) <= 0.0 for cell, count in counts.items() if count):
        return False
    total = sum(counts.values())
    large = [cell for cell, chance in chances.items() if total * chance >= 5]
    observed = [counts.get(cell, 0) for cell in large]
    expected = [total * chances[cell] for cell in large]
    if total - sum(expected) >= 5:
        observed.append(total - sum(observed))
        expected.append(total - sum(expected))
    statistic = sum((seen - due) ** 2 / due for seen, due in zip(observed, expected, strict=True))
    return statistic < critical_value(max(1, len(expected) - 1))


def interrupt(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Make the `call`-th call of `LLM.generate` raise KeyboardInterrupt."""
    generate, calls = LLM.generate, itertools.count(1)

    def interrupted(self: LLM, *arguments: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return generate(self, *arguments)

    monkeypatch.setattr(LLM, "generate", interrupted)
