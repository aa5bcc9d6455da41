"""Compare a decoder type of transformers with `generate` for every kind of draft."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from paceline import LLM, Drafter, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.errors import UnsupportedModelError
from tests.support.tiny_configs import tiny_config

PROMPTS = [[5, 9, 11, 7, 5, 9, 11], list(range(5, 45)), [8, 8, 8]]
NUM_TOKENS = 32
MAX_WEIGHTS = 120_000_000
TREES, CHAINS, UNCACHED = "trees", "chains", "uncached"
REFUSED, WRONG, NOT_BUILT = "refused", "wrong", "not built"


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Result for a model type.

    Attributes:
        model_type: Name in transformers.
        outcome: `TREES` or `CHAINS` if all outputs were equal. `UNCACHED` if they equal the
            outputs without a KV cache, but not those of `generate`. Otherwise `REFUSED`, `WRONG` or
            `NOT_BUILT`.
        reason: Why the type was refused, wrong or not built.
    """

    model_type: str
    outcome: str
    reason: str = ""


class RandomTrees(Drafter):
    """Drafter that proposes random trees, many with tokens of the text."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [
            self._tree(list(request.token_ids[-12:]), count)
            for request, count in zip(requests, max_nodes, strict=True)
        ]

    def _tree(self, known: list[int], max_nodes: int) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        for node in range(min(max_nodes, self._random.randint(0, 9))):
            parent = self._random.randint(-1, node - 1)
            siblings = {tokens[at] for at in range(node) if parents[at] == parent}
            choices = [token for token in (*known, *range(5, 60)) if token not in siblings]
            tokens.append(self._random.choice(choices))
            parents.append(parent)
        return DraftTree(tokens, parents)


class HiddenAnswers(Drafter):
    """Drafter that hides each correct token behind wrong siblings.

    Accepted paths therefore follow side branches.
    """

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._answers, self._random = answers, random.Random(2)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [
            self._tree(self._rest(request), count)
            for request, count in zip(requests, max_nodes, strict=True)
        ]

    def _rest(self, request: Request) -> list[int]:
        prompt = tuple(request.token_ids[: request.prompt_length])
        return self._answers[prompt][len(request.token_ids) - request.prompt_length :]

    def _tree(self, rest: list[int], max_nodes: int) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        last = -1
        for true in rest[: self._random.randint(0, 4)]:
            wrong = [token for token in self._random.sample(range(3, 90), 2) if token != true]
            wrong = wrong[: self._random.randint(0, 2)]
            if len(tokens) + len(wrong) + 1 > max_nodes:
                break
            tokens += [*wrong, true]
            parents += [last] * (len(wrong) + 1)
            last = len(tokens) - 1
        return DraftTree(tokens, parents)


def build(model_type: str) -> Any:
    """Build a tiny model of a type with random weights.

    Raises:
        ValueError: The model is too large.
    """
    torch.manual_seed(0)
    config = tiny_config(model_type)
    with torch.device("meta"):
        size = sum(
            weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters()
        )
    if size > MAX_WEIGHTS:
        raise ValueError(f"{size:,} weights")
    model = AutoModelForCausalLM.from_config(config).eval().float()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():
                weight.add_(torch.randn(weight.shape, generator=noise) * 0.25)
    if model.generation_config is not None:
        model.generation_config.eos_token_id = None
    return model


def survey(model_type: str) -> Surveyed:
    """Build a tiny model, and compare its drafted outputs with `generate`."""
    try:
        model = build(model_type)
        expected = [answer(model, prompt) for prompt in PROMPTS]
    except Exception as error:
        return Surveyed(model_type, NOT_BUILT, _words(error))
    known = {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, expected, strict=True)}
    params = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True)
    takes_trees, is_uncached = True, False
    for drafter in (RandomTrees(), HiddenAnswers(known), "none"):
        try:
            llm = LLM(model, drafter, max_batch=2, max_length=200, batch_invariant=False)
            answers = [list(out.token_ids) for out in llm.generate(PROMPTS, params)]
        except UnsupportedModelError as error:
            return Surveyed(model_type, REFUSED, _words(error))
        except Exception as error:
            return Surveyed(model_type, WRONG, f"{type(error).__name__}: {_words(error)}")
        if answers != expected and answers == uncached(model):
            is_uncached = True
        elif answers != expected:
            count = sum(a != b for a, b in zip(answers, expected, strict=True))
            name = drafter if isinstance(drafter, str) else type(drafter).__name__
            return Surveyed(model_type, WRONG, f"{count} of {len(PROMPTS)} answers with {name}")
        takes_trees = llm.model.takes_trees
    outcome = UNCACHED if is_uncached else TREES if takes_trees else CHAINS
    return Surveyed(model_type, outcome)


@torch.inference_mode()
def answer(model: Any, prompt: list[int]) -> list[int]:
    """Return the greedy output of `generate`."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@cache
@torch.inference_mode()
def uncached(model: Any) -> list[list[int]]:
    """Return greedy outputs that recompute the whole text for each token."""
    answers = []
    for prompt in PROMPTS:
        text = list(prompt)
        for _ in range(NUM_TOKENS):
            logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
            text.append(int(logits.argmax()))
        answers.append(text[len(prompt) :])
    return answers


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
