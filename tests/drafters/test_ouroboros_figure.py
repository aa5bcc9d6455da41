"""Run the first figure of the Ouroboros paper and compare it with the documentation page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from paceline import DraftTree, SamplingParams
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.drafters.ouroboros.drafter import Ouroboros, OuroborosOptions
from paceline.engine.step import decode_step
from paceline.model.cached_lm import CachedLM

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "ouroboros.md"


class LetterModel:
    """Fake `CachedLM` over letters, whose next letter is given by a function."""

    vocab_size, context_length, takes_trees, forward_seconds, uses_target_states = (
        26,
        1000,
        True,
        0.0,
        False,
    )
    prefill_chunk, kept_ids = 512, None
    model = SimpleNamespace(get_output_embeddings=lambda: None)  # its vocabulary is not reduced

    def __init__(self, after: Callable[[str], str]) -> None:
        self._after = after
        self._requests: list[Request] = []

    def reserve(self, slots: int, positions: int) -> None: ...

    def open(self, request: Request) -> None: ...

    def close(self, request: Request) -> None: ...

    def limit_tree(self, tree: DraftTree, request: Request) -> DraftTree:
        return tree

    def restart_if_due(self, request: Request) -> None: ...

    def forward_nodes(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
        num_top: int = 0,
    ) -> NodeLogits:
        self._requests = list(requests)
        logits = torch.zeros(len(requests), 1 + max(map(len, trees)), 26)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            request.counters.target_forwards += 1
            texts = [to_text(request.token_ids)]
            for token, parent in zip(tree.token_ids, tree.parents, strict=True):
                texts.append(texts[parent + 1] + to_text([token]))
            for node, text in enumerate(texts):
                logits[row, node, ord(self._after(text)) - 65] = 20.0
        return NodeLogits.from_padded(logits.flatten(0, 1), [1 + len(tree) for tree in trees])

    def forward(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], reduced_logits: bool = False
    ) -> Tensor:
        return self.forward_nodes(requests, trees).padded()

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        for request in self._requests:
            request.cached = len(request)

    def rewind(self, request: Request, length: int) -> None:
        request.cached = min(request.cached, length)


def to_text(tokens: Sequence[int]) -> str:
    return "".join(chr(65 + token) for token in tokens)


def to_tokens(text: str) -> tuple[int, ...]:
    return tuple(ord(letter) - 65 for letter in text)


def next_letter(text: str) -> str:
    return chr(65 + (ord(text[-1]) - 64) % 26)


def next_letter_with_error(text: str) -> str:
    """Return the figure's draft model's next letter: G H I W K L M N."""
    return {"I": "W", "W": "K"}.get(text[-1], next_letter(text))


def run_figure(rule: str) -> str:
    """Return two steps of the paper's tree, in the page's format."""
    options = OuroborosOptions(
        gamma=10, window=1, ngram=4, max_branches=0, inspiration=rule, budget=False
    )
    drafter = Ouroboros(options, cast(CachedLM, LetterModel(next_letter_with_error)))
    target = cast(CachedLM, LetterModel(next_letter))
    request = Request(list(to_tokens("ABCD")), SamplingParams(max_new_tokens=60))
    drafter.start(request)
    lines = []
    for step in range(2):
        text = to_text(request.token_ids)
        (outcome,) = decode_step(target, drafter, [request], [60])
        lines += [
            f"text so far   {text}",
            f"draft         {to_spaced_text(outcome.tree.token_ids[:10])}",
        ]
        lines += (
            [f"target        {to_spaced_text(outcome.target_argmax[:11])}"] if step == 0 else []
        )
        lines += [f"emitted       {to_spaced_text(outcome.new_token_ids)}"]
        if step == 0:
            pool = drafter._shadows[request.id].pool
            found = [(key, next(pool.newest_first(to_tokens(key)), ())) for key in ("WK", "KL")]
            lines += [
                "learned       "
                + ",  ".join(
                    f"{' '.join(key)} -> {to_spaced_text(phrase)}" for key, phrase in found
                ),
                "",
            ]
    drafter.stop(request)
    return "\n".join(lines)


def to_spaced_text(tokens: Sequence[int]) -> str:
    return " ".join(to_text(tokens))


@pytest.mark.parametrize("rule", ["every", "code"])
def test_page_shows_the_run(rule: str) -> None:
    assert f"```text\n{run_figure(rule)}\n```" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("rule", "learned"),
    [("paper", "W K -> W K L,  K L -> M N O"), ("off", "W K -> W K L,  K L -> K L M")],
)
def test_other_rules_learn_less(rule: str, learned: str) -> None:
    """Check the rules that need a correct key or learn only from the draft model's window."""
    assert f"learned       {learned}\n" in run_figure(rule)
