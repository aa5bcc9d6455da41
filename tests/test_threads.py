"""Test threads and engines that share a model, which stays unchanged."""

from __future__ import annotations

import asyncio
import copy
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline import LLM, SamplingParams
from paceline.drafters import create
from paceline.integrations.transformers import Strategy
from paceline.model.cached_lm import CachedLM
from paceline.model.self_check import plain_logits
from tests.support.models import make
from tests.support.shared import COUNT, Pair

SHORT = SamplingParams(12)
MIXED = (
    SamplingParams(6),
    SamplingParams(4, temperature=0.8, seed=3),
    SamplingParams(8, temperature=1.3, top_k=20, min_p=0.02, seed=8),
    SamplingParams(5, repetition_penalty=1.3),
    SamplingParams(3, temperature=1.0, top_p=0.7, seed=1, ignore_eos=True),
)


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Make threads switch ten times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 10)
    yield
    sys.setswitchinterval(before)


def tokens(llm: LLM, prompt: list[int], params: SamplingParams = SHORT) -> list[int]:
    return llm.generate([prompt], params)[0].token_ids


def theirs(model: Any, prompt: list[int], **options: Any) -> list[int]:
    ids = model.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0, **options
    )
    found: list[int] = ids[0, len(prompt) :].tolist()
    return found


def test_two_hundred_requests_of_eight_threads(pair: Pair) -> None:
    cases = list(itertools.product(pair.prompts[:8], MIXED))
    plain = pair.engine("none")
    alone = [tokens(plain, *case) for case in cases]
    llm = pair.engine("auto", max_batch=5)
    before = copy.deepcopy(pair.target.config.to_dict()), pair.target.config._attn_implementation

    def ask(number: int) -> list[int]:
        prompt, params = cases[number % len(cases)]
        if number % 3:
            return tokens(llm, prompt, params)
        return [token for chunk in llm.stream(prompt, params) for token in chunk.token_ids]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(200)))
    assert answers == alone * 5
    assert (pair.target.config.to_dict(), pair.target.config._attn_implementation) == before
    assert llm.model.open_sequences == 0


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_all_kinds_of_callers_share_a_model(pair: Pair, implementation: str) -> None:
    """Run LLMs, Strategies, `generate` and plain calls of one model at once."""
    model = make("llama", implementation)
    prompts = [[token % 97 for token in prompt] for prompt in pair.prompts[:3]]
    expected = [theirs(model, prompt) for prompt in prompts]
    logits = [model(torch.tensor([prompt])).logits for prompt in prompts]
    llms = [
        LLM(model, drafter, batch_invariant=invariant)
        for drafter, invariant in (("lookahead", False), ("pia", True))
    ]
    strategies = [Strategy("lookahead:budget=false"), Strategy("prompt_lookup")]
    callers: list[Callable[[list[int]], Any]] = [
        *(lambda prompt, llm=llm: tokens(llm, prompt) for llm in llms),
        *(lambda prompt, one=one: theirs(model, prompt, custom_generate=one) for one in strategies),
        lambda prompt: theirs(model, prompt),
        lambda prompt: model(torch.tensor([prompt])).logits,
    ]

    def ask(number: int) -> Any:
        return callers[number % len(callers)](prompts[number // len(callers) % len(prompts)])

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(2 * len(callers) * len(prompts))))
    for number, answer in enumerate(answers):
        index = number // len(callers) % len(prompts)
        if isinstance(answer, Tensor):
            assert torch.equal(answer, logits[index])
        else:
            assert answer == expected[index], callers[number % len(callers)]
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("invariant", [False, True])
def test_the_configuration_stays_unchanged_during_steps(pair: Pair, invariant: bool) -> None:
    model = make("llama", "sdpa")
    seen: list[tuple[str, bool]] = []
    llm = LLM(model, "lookahead:budget=false", batch_invariant=invariant)
    hook = model.lm_head.register_forward_hook(
        lambda module, *_: seen.append(
            (model.config._attn_implementation, "forward" in vars(model.model.layers[0]))
        )
    )
    try:
        tokens(llm, [token % 97 for token in pair.prompts[0]])
    finally:
        hook.remove()
    assert set(seen) == {("sdpa", False)}


def test_calls_in_asyncio_threads(pair: Pair) -> None:
    llm = pair.engine("lookahead")

    async def all_at_once() -> list[Any]:
        calls = (
            asyncio.to_thread(llm.generate, [prompt], SamplingParams(COUNT))
            for prompt in pair.prompts[:4]
        )
        return await asyncio.gather(*calls)

    assert [out.token_ids for (out,) in asyncio.run(all_at_once())] == pair.answers[:4]


def test_engines_that_share_a_drafter_take_turns(pair: Pair) -> None:
    drafter = create("draft_model", draft_model=pair.draft)
    llms = [LLM(pair.target, drafter), LLM(pair.target, drafter)]
    with ThreadPoolExecutor(4) as threads:
        jobs = [
            threads.submit(tokens, llms[index % 2], prompt)
            for index, prompt in enumerate(pair.prompts[:6] * 2)
        ]
        assert [job.result() for job in jobs] == [answer[:12] for answer in pair.answers[:6]] * 2


def test_hidden_states_of_other_threads_are_ignored(pair: Pair) -> None:
    """Forward passes of another thread must not be recorded."""
    model, done = pair.target, threading.Event()

    def other() -> None:
        with torch.no_grad():
            while not done.is_set():
                model(torch.tensor([pair.prompts[0]]))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        llm = pair.engine("specdec_pp:threshold=0.9,max_draft_tokens=6")
        assert [tokens(llm, prompt) for prompt in pair.prompts[:3]] == [
            answer[:12] for answer in pair.answers[:3]
        ]
    finally:
        done.set()
        thread.join()


def test_replaced_modules_take_effect(pair: Pair) -> None:
    """Adapters replace modules of a model with others."""

    class Wrapped(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base, self.scale = base, 1.0

        def forward(self, rows: Tensor) -> Tensor:
            out: Tensor = self.base(rows)
            return out * self.scale

    model = copy.deepcopy(pair.target)
    llm, strategy = LLM(model, "prompt_lookup"), Strategy("prompt_lookup")
    prompt = pair.prompts[0]
    assert tokens(llm, prompt) == pair.answers[0][:12]
    mlp = model.model.layers[1].mlp
    mlp.down_proj = Wrapped(mlp.down_proj)
    for scale in (8.0, -8.0):
        mlp.down_proj.scale = scale
        expected = theirs(model, prompt)
        assert expected != pair.answers[0][:12]
        assert tokens(llm, prompt) == theirs(model, prompt, custom_generate=strategy) == expected


def test_a_view_shares_weights_and_has_its_own_configuration(pair: Pair) -> None:
    model = copy.deepcopy(pair.target)
    lm = CachedLM(model)
    view = lm._runner.view
    assert view.module.model.layers[0].mlp.up_proj is model.model.layers[0].mlp.up_proj
    assert {id(one) for one in view.module.parameters()} == {id(one) for one in model.parameters()}
    assert (
        view.module.config
        is view.module.model.config
        is view.module.model.layers[0].self_attn.config
        is view.config
    )
    assert view.config is not model.config
    assert not view.stale
    plain_logits(lm, pair.prompts[0])
    assert len(model(torch.tensor([pair.prompts[0]]), output_hidden_states=True).hidden_states) == 3
