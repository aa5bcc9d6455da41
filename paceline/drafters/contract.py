"""Check in a test that a drafter follows the drafter contract.

For example, call `check_drafter(create("bigram"))`. The check decodes a few prompts. The node limit
changes from step to step and from request to request. The check compares every tree with the rules
in `paceline.core.drafter`, and every answer with plain decoding.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedModel

from paceline import demo
from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.core.vocabulary_check import check_vocabulary
from paceline.drafters.contract_settings import (
    ABORT_SEED,
    ABORT_STEPS,
    BUDGET_SEED,
    BUDGETS,
    MIN_PROMPTS,
    NUM_PROMPTS,
    PROMPT_TOKENS,
    STEPS_BEFORE_ABORT,
)
from paceline.drafters.none import NoDrafter
from paceline.engine.step import decode_step
from paceline.errors import ConfigError, DrafterError
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import eos_token_ids, load_model
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.verification.tree_rules import check_trees


@dataclass(frozen=True, slots=True)
class ContractReport:
    """Summary of a drafter's activity during the check.

    Attributes:
        steps: Number of trees requested.
        drafted: Total number of nodes in these trees.
        accepted: Number of nodes that the target accepted.
        draws: Whether any tree included sampling distributions (`DraftTree.probs`).
    """

    steps: int
    drafted: int
    accepted: int
    draws: bool


class CheckedDrafter(DelegatingDrafter):
    """Wraps a drafter to vary its node limits and check each tree.

    Args:
        inner: Drafter to check.
        vocab: Size of the target's vocabulary.
        budgets: Node limits to choose from at random.
        seed: Random seed for the limits.
    Attributes:
        steps: Number of trees requested.
        empty_on_zero: Number of trees requested with a limit of 0.
        nodes: Number of nodes in all trees.
        accepted: Number of nodes that the target accepted.
        drawn: Whether any tree included sampling distributions (`DraftTree.probs`).
    """

    def __init__(
        self, inner: Drafter, vocab: int, budgets: Sequence[int] = BUDGETS, seed: int = BUDGET_SEED
    ) -> None:
        super().__init__(inner)
        self.steps = self.nodes = self.accepted = self.empty_on_zero = 0
        self.drawn = False
        self._vocab, self._budgets = vocab, list(budgets)
        self._random = random.Random(seed)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Propose trees with the inner drafter, and check them against the contract.

        Raises:
            DrafterError: A tree breaks the contract.
        """
        budget = [min(limit, self._random.choice(self._budgets)) for limit in max_nodes]
        trees = super().propose(requests, list(budget))
        check_trees(self.inner, requests, budget, trees, self._vocab)
        self.steps += len(trees)
        self.empty_on_zero += budget.count(0)
        self.nodes += sum(map(len, trees))
        self.drawn = self.drawn or any(tree.probs is not None for tree in trees)
        return trees

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Count the accepted nodes, and pass the outcomes to the inner drafter."""
        self.accepted += sum(len(outcome.accepted) for outcome in outcomes)
        super().observe(outcomes)


def check_drafter(
    drafter: Drafter,
    target: PreTrainedModel | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    max_new_tokens: int = 24,
) -> ContractReport:
    """Check a drafter against the contract on a real model.

    The check verifies the following:

    - Every tree follows the rules under varying node limits.
    - Greedy answers equal those of plain decoding. If the trees contain no sampling distributions,
      sampled answers also equal those of plain decoding.
    - If a request is stopped before its first draft, between two drafts, or twice, other requests
      are not affected.
    - The drafter keeps no state for a stopped request.

    The check cannot verify that the nodes were really sampled from the distributions in `probs`.

    Args:
        drafter: Drafter to check.
        target: Target model in float32. Default: the built-in target.
        prompts: At least four prompts as token ids. Default: built-in prompts.
        max_new_tokens: Maximum length of an answer, in tokens; default 24.
    Raises:
        DrafterError: The drafter breaks the contract.
        ConfigError: The target or the prompts cannot be used.
    """
    model = _float32_model(target)
    texts = _embedded_prompts() if prompts is None else [list(prompt) for prompt in prompts]
    if len(texts) < MIN_PROMPTS:
        raise ConfigError(
            f"check_drafter: got {len(texts)} prompts; expected at least {MIN_PROMPTS}. Leave"
            " prompts out to use the built-in ones."
        )
    check_vocabulary(drafter, model.vocab_size)
    drafter.attach(model.model)
    checked = CheckedDrafter(drafter, model.vocab_size)
    eos = eos_token_ids(model.model)
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_new_tokens, temperature=temperature, seed=1)
        plain = _decode(model, NoDrafter(), texts, params, eos)
        drafted = _decode(model, checked, texts, params, eos)
        if temperature == 0.0 or not checked.drawn:
            _compare(drafter, plain, drafted)
        if temperature == 0.0:
            check_aborts(model, checked, texts, plain)
    return ContractReport(checked.steps, checked.nodes, checked.accepted, checked.drawn)


def check_aborts(
    model: CachedLM,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    budgets: Sequence[int] = BUDGETS,
) -> None:
    """Check that aborted requests leave no state, and do not affect other requests.

    One request is aborted before its first draft, and one after a few steps. At the end, all
    requests are stopped, so the drafter stops these two requests twice.

    Args:
        model: Target model.
        drafter: Drafter to check.
        prompts: At least four prompts as token ids.
        answers: Answers from plain decoding.
        budgets: Node limits to choose from at random.
    Raises:
        DrafterError: The drafter did not free its state for these requests, or an answer differs
            from that of plain decoding.
    """
    # The limit is so large that no request ends on its own.
    generator, limit = random.Random(ABORT_SEED), 10 * max(map(len, answers))
    requests = [Request(list(prompt), SamplingParams(limit)) for prompt in prompts[:MIN_PROMPTS]]
    try:
        for request in requests:
            model.open(request)
            drafter.start(request)
        drafter.stop(requests[3])
        for step in range(ABORT_STEPS):
            group = requests[:3] if step < STEPS_BEFORE_ABORT else requests[1:3]
            decode_step(model, drafter, group, [generator.choice(budgets) for _ in group])
            if step == STEPS_BEFORE_ABORT - 1:
                drafter.stop(requests[0])
    finally:
        for request in requests:
            drafter.stop(request)
            model.close(request)
    _require_empty(drafter, requests)
    for request, answer in zip(requests, answers, strict=False):
        length = min(len(answer), len(request.output_ids))
        _compare(drafter, [list(answer[:length])], [request.output_ids[:length]])


def leftovers(drafter: Drafter, request_ids: Iterable[int]) -> list[str]:
    """Return the names of attributes that still refer to finished requests.

    Args:
        drafter: Drafter to check.
        request_ids: Ids of the finished requests.
    """
    ids = set(request_ids)
    names = []
    for name, value in vars(drafter).items():
        if isinstance(value, dict | set) and ids & set(value):
            names.append(name)
        elif isinstance(value, CachedLM) and value.open_sequences:
            names.append(f"{name}.open_sequences")
        elif isinstance(value, Drafter):
            names += [f"{name}.{inner}" for inner in leftovers(value, ids)]
    return names


def _decode(
    model: CachedLM,
    drafter: Drafter,
    prompts: list[list[int]],
    params: SamplingParams,
    ends: Iterable[int],
) -> list[list[int]]:
    """Decode the answers to all prompts in one batch, and return them."""
    requests = [Request(prompt, params, eos_token_ids=ends) for prompt in prompts]
    try:
        for request in requests:
            model.open(request)
            drafter.start(request)
        while group := [request for request in requests if request.finish_reason is None]:
            decode_step(model, drafter, group, [max(BUDGETS)] * len(group))
    finally:
        for request in requests:
            drafter.stop(request)
            model.close(request)
    _require_empty(drafter, requests)
    return [request.output_ids for request in requests]


def _require_empty(drafter: Drafter, requests: list[Request]) -> None:
    drafter = drafter.inner if isinstance(drafter, CheckedDrafter) else drafter
    # Ids are consecutive, so the range includes requests that the drafter opened itself.
    last = Request([0], SamplingParams()).id
    names = leftovers(drafter, range(requests[0].id, last))
    if names:
        raise DrafterError(
            f"the drafter {drafter.name!r} still holds stopped requests in {', '.join(names)}. Free"
            " them in stop."
        )


def _compare(drafter: Drafter, plain: list[list[int]], drafted: list[list[int]]) -> None:
    for index, (expected, answer) in enumerate(zip(plain, drafted, strict=True)):
        if expected != answer:
            first = next(
                (
                    i
                    for i, pair in enumerate(zip(expected, answer, strict=False))
                    if pair[0] != pair[1]
                ),
                len(expected),
            )
            raise DrafterError(
                f"the drafter {drafter.name!r} changed answer {index}: token {first} differs from"
                " plain decoding. Check whether the drafter changes a request, or a tree after"
                " propose."
            )


def _embedded_prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(None, demo.TARGET)
    with demo.PROMPTS.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["turns"][0] for line in islice(lines, NUM_PROMPTS)]
    return [
        [int(token) for token in tokenizer(text)["input_ids"][:PROMPT_TOKENS]] for text in texts
    ]


def _float32_model(target: PreTrainedModel | None) -> CachedLM:
    model = CachedLM(load_model(demo.TARGET, "float32") if target is None else target)
    if model.model.dtype != torch.float32:
        raise ConfigError(
            f"check_drafter: got a target in {model.model.dtype}; expected float32. Call"
            " target.float() first."
        )
    return model
