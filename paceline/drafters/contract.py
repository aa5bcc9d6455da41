"""Check the drafter contract in a test: `check_drafter(create("bigram"))`.

The check decodes a few prompts under node limits that change between steps and requests. It
verifies every tree against the rules of `paceline.core.drafter`, and every answer against plain
decoding.
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
from paceline.core.drafter import DelegatingDrafter, Drafter, Outcome, check_vocabulary
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import DraftTree
from paceline.drafters.none import NoDrafter
from paceline.engine.step import decode_step
from paceline.errors import ConfigError, DrafterError
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import eos_token_ids, load_model
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.verification.tree_rules import check_trees

BUDGETS = (0, 1, 2, 5, 40)
_PROMPTS = 5  # at least four: one continues, one stops before it begins, one midway, one twice
_STEPS_BEFORE_AN_ABORT = 3


@dataclass(frozen=True, slots=True)
class ContractReport:
    """Summarise what a drafter did during the check.

    Attributes:
        steps: Number of trees that were requested.
        drafted: Number of nodes in these trees.
        accepted: Number of nodes that the target accepted.
        draws: Whether some trees carried distributions.
    """

    steps: int
    drafted: int
    accepted: int
    draws: bool


class CheckedDrafter(DelegatingDrafter):
    """Wrap a drafter, vary its node limits, and check each of its trees.

    Args:
        inner: Drafter to check.
        vocab: Size of the target's vocabulary.
        budgets: Node limits to draw from.
        seed: Random seed of the limits.
    Attributes:
        steps: Number of trees that were requested.
        empty_on_zero: Number of these with a limit of 0.
        nodes: Number of nodes in all trees.
        accepted: Number of nodes that the target accepted.
        drawn: Whether a tree carried distributions.
    """

    def __init__(
        self, inner: Drafter, vocab: int, budgets: Sequence[int] = BUDGETS, seed: int = 3
    ) -> None:
        super().__init__(inner)
        self.steps = self.nodes = self.accepted = self.empty_on_zero = 0
        self.drawn = False
        self._vocab, self._budgets = vocab, list(budgets)
        self._random = random.Random(seed)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return the drafter's trees after checking them against the contract.

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
        """Count what was accepted, and pass it on."""
        self.accepted += sum(len(outcome.accepted) for outcome in outcomes)
        super().observe(outcomes)


def check_drafter(
    drafter: Drafter,
    target: PreTrainedModel | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    max_new_tokens: int = 24,
) -> ContractReport:
    """Hold a drafter against the contract on a real model.

    Checked: every tree keeps the rules for every budget; greedy answers are those of plain
    decoding, and so are sampled ones where the drafter only guesses; sequences stopped before their
    first proposal, midway and twice disturb no other; nothing of a stopped sequence is left in the
    drafter. Not checked: that `probs` are the distributions its nodes were drawn from.

    Args:
        target: a model in float32; default the embedded one.
        prompts: at least four, as token ids; default some of the embedded ones.
        max_new_tokens: length of the answers.
    Raises:
        DrafterError: what was broken, by which drafter; ConfigError: a target or prompts that
            cannot be used.
    """
    model = CachedLM(load_model(demo.TARGET, "float32") if target is None else target)
    if model.model.dtype != torch.float32:
        raise ConfigError(
            f"check_drafter: got a target in {model.model.dtype}; expected float32. Call"
            " target.float() first."
        )
    asked = _embedded_prompts() if prompts is None else [list(prompt) for prompt in prompts]
    if len(asked) < 4:
        raise ConfigError(
            f"check_drafter: got {len(asked)} prompts; expected at least 4. Leave prompts out for"
            " the embedded ones."
        )
    check_vocabulary(drafter, model.vocab_size)
    drafter.attach(model.model)
    checked = CheckedDrafter(drafter, model.vocab_size)
    ends = eos_token_ids(model.model)
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_new_tokens, temperature=temperature, seed=1)
        plain = _decode(model, NoDrafter(), asked, params, ends)
        found = _decode(model, checked, asked, params, ends)
        if temperature == 0.0 or not checked.drawn:
            _compare(drafter, plain, found)
        if temperature == 0.0:
            check_aborts(model, checked, asked, plain)
    return ContractReport(checked.steps, checked.nodes, checked.accepted, checked.drawn)


def check_aborts(
    model: CachedLM,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    budgets: Sequence[int] = BUDGETS,
) -> None:
    """Stop greedy requests before, during and after drafting, and twice; nothing of them may be
    left, no other be disturbed.

    Args:
        prompts, answers: at least four, and what plain decoding answers.
    Raises:
        DrafterError: something is left in the drafter, or an answer differs.
    """
    chance, longest = random.Random(2), 10 * max(map(len, answers))
    # none ends by itself
    requests = [Request(list(prompt), SamplingParams(longest)) for prompt in prompts[:4]]
    try:
        for request in requests:
            model.open(request)
            drafter.start(request)
        drafter.stop(requests[3])
        for step in range(8):
            group = requests[:3] if step < _STEPS_BEFORE_AN_ABORT else requests[1:3]
            decode_step(model, drafter, group, [chance.choice(budgets) for _ in group])
            if step == _STEPS_BEFORE_AN_ABORT - 1:
                drafter.stop(requests[0])
    finally:
        for request in requests:
            drafter.stop(request)
            model.close(request)
    _require_empty(drafter, requests)
    for request, answer in zip(requests, answers, strict=False):
        length = min(len(answer), len(request.output_ids))
        _compare(drafter, [list(answer[:length])], [request.output_ids[:length]])


def leftovers(drafter: Drafter, sequences: Iterable[int]) -> list[str]:
    """Return the names of attributes of `drafter` that still hold something of finished
    sequences, given by their ids.
    """
    ids = set(sequences)
    found = []
    for name, value in vars(drafter).items():
        if isinstance(value, dict | set) and ids & set(value):
            found.append(name)
        elif isinstance(value, CachedLM) and value.open_sequences:
            found.append(f"{name}.open_sequences")
        elif isinstance(value, Drafter):
            found += [f"{name}.{inner}" for inner in leftovers(value, ids)]
    return found


def _decode(
    model: CachedLM,
    drafter: Drafter,
    prompts: list[list[int]],
    params: SamplingParams,
    ends: Iterable[int],
) -> list[list[int]]:
    """The answers to all prompts, decoded together."""
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
    last = Request(
        [0], SamplingParams()
    ).id  # sequences the drafter opened for its own use lie between
    kept = leftovers(drafter, range(requests[0].id, last))
    if kept:
        raise DrafterError(
            f"drafter {drafter.name!r}: got {', '.join(kept)} still holding stopped sequences;"
            " expected nothing of them. Free it in stop."
        )


def _compare(drafter: Drafter, plain: list[list[int]], found: list[list[int]]) -> None:
    for place, (expected, answer) in enumerate(zip(plain, found, strict=True)):
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
                f"drafter {drafter.name!r}: got another token {first} in answer {place} than plain"
                " decoding; expected the same answer. Look for a change of seq or of a tree after"
                " propose."
            )


def _embedded_prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(None, demo.TARGET)
    with demo.PROMPTS.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["turns"][0] for line in islice(lines, _PROMPTS)]
    return [[int(token) for token in tokenizer(text)["input_ids"][:64]] for text in texts]
