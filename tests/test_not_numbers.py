"""Test logits that are not numbers: only the request that needs them fails."""

from __future__ import annotations

import copy
import threading
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from transformers import InfNanRemoveLogitsProcessor

from paceline import LLM, DraftTree, SamplingParams, ScriptedDrafter
from paceline.core.not_numbers import NO_TOKEN
from paceline.cpu.topk import argmax, topk
from paceline.errors import ConfigError, LogitsError
from paceline.integrations.transformers import Strategy
from tests.support.serving import KEY, served
from tests.support.shared import SAME_SEED, SPECS, Pair

COUNT = 10
SHORT = SamplingParams(COUNT)
SAMPLED = SamplingParams(COUNT, temperature=1.0, seed=1)
KINDS = [
    SHORT,
    SAMPLED,
    SamplingParams(COUNT, logprobs=2),
    SamplingParams(COUNT, min_tokens=2, bad_words=[[7]]),
    SamplingParams(COUNT, temperature=0.7, top_k=9, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(COUNT, logits_processors=[lambda ids, scores: scores]),
    SamplingParams(COUNT, logprobs=1, prompt_logprobs=1),
]
NAN, INF = float("nan"), float("inf")
EMPTY = [NAN, INF, -INF]


def broken(model: Any, token: int | None = None, value: float = NAN) -> Any:
    """Return a copy of a model with broken logits.

    Without `token`, all logits are `value`. If `token` is given, the logits after a text that
    contains this token are `value`, and so are the token's keys and values.
    """
    model = copy.deepcopy(model)
    with torch.no_grad():
        if token is not None:
            model.get_input_embeddings().weight[token] = value
        else:
            model.lm_head.register_forward_hook(
                lambda module, args, out: torch.full_like(out, value)
            )
    return model


def unused(pair: Pair) -> int:
    """Return a token that occurs in no prompt and no output."""
    used = {token for text in (*pair.prompts, *pair.answers) for token in text}
    return next(token for token in range(1, 256) if token not in used)


def engine(pair: Pair, target: Any, spec: str = "none", draft: Any = None, **options: Any) -> LLM:
    return Pair(target, draft or pair.draft, pair.prompts, pair.answers).engine(spec, **options)


@pytest.mark.parametrize(
    "spec", ["none", "prompt_lookup", "auto", "draft_model", "token_recycling", "lookahead"]
)
def test_every_request_ends_with_one_error(pair: Pair, spec: str) -> None:
    llm = engine(pair, broken(pair.target), spec)
    for params in KINDS:
        with pytest.raises(
            LogitsError, match=r"logits in float32 that are not numbers.*dtype='bfloat16'"
        ) as caught:
            llm.generate([pair.prompts[0]], params)
        assert "drafter" not in str(caught.value)
        with pytest.raises(LogitsError):
            list(llm.stream(pair.prompts[0], params))
    assert llm.load.running == llm.model.open_sequences == 0


@pytest.mark.parametrize("value", EMPTY)
@pytest.mark.parametrize("params", KINDS)
def test_infinite_logits_raise(pair: Pair, value: float, params: SamplingParams) -> None:
    with pytest.raises(LogitsError, match="not numbers"):
        engine(pair, broken(pair.target, value=value)).generate([pair.prompts[0]], params)


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [(torch.float16, "overflows beyond 65504"), (torch.bfloat16, "dtype='float32'")],
)
def test_the_error_gives_advice_on_the_dtype(pair: Pair, dtype: torch.dtype, advice: str) -> None:
    llm = LLM(broken(pair.target).to(dtype), "none")
    with pytest.raises(LogitsError, match=advice):
        llm.generate([pair.prompts[0]], SHORT)


@pytest.mark.parametrize("params", KINDS[:5])
def test_single_tokens_may_be_impossible(pair: Pair, params: SamplingParams) -> None:
    """A vocabulary may be padded with -inf."""
    model = copy.deepcopy(pair.target)
    padding = torch.zeros(256)
    padding[[token for token in range(256) if token % 3 == 0]] = -INF
    model.lm_head.register_forward_hook(lambda module, args, out: out + padding)
    answers = [
        engine(pair, model, spec).generate([pair.prompts[0]], params)[0].token_ids
        for spec in ("none", "auto", "sssd")
    ]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) == COUNT
    assert all(token % 3 for token in answers[0])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("spec", ["none", "prompt_lookup", "auto", "token_recycling"])
def test_other_requests_in_the_batch_are_unaffected(
    pair: Pair, spec: str, invariant: bool, implementation: str
) -> None:
    """Other requests stay correct, also in a slot that held NaN before.

    Masked attention multiplies by 0, which keeps NaN.
    """
    bad = unused(pair)
    model = broken(pair.target, bad)
    model.set_attn_implementation(implementation)
    if invariant and implementation == "eager":
        pytest.skip("batch invariance needs another implementation")
    llm = engine(pair, model, spec, max_batch=3, batch_invariant=invariant, keep_prefixes=2)
    prompts = [
        [*pair.prompts[1][:5], bad, *pair.prompts[0] * 3],
        *pair.prompts[:4],
        [*pair.prompts[2], bad],
        *pair.prompts[4:6],
    ]
    answers: dict[int, Any] = {}

    def ask(index: int) -> None:
        try:
            answers[index] = llm.generate([prompts[index]], SHORT)[0].token_ids
        except LogitsError as error:
            answers[index] = str(error)

    for _ in range(2):
        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [answers[index] for index in (1, 2, 3, 4, 6, 7)]
        assert found == [answer[:COUNT] for answer in pair.answers[:6]]
        assert "not numbers" in answers[0]
        assert "not numbers" in answers[5]


@pytest.mark.parametrize("params", [SHORT, SAMPLED])
def test_rejected_branches_do_not_matter(pair: Pair, params: SamplingParams) -> None:
    bad = unused(pair)
    model = broken(pair.target, bad)
    want = LLM(pair.target, "none").generate(pair.prompts[:3], params)
    tree = DraftTree([bad, bad, bad, bad, bad], [-1, 0, 1, 2, 3])
    llm = LLM(model, ScriptedDrafter([tree, DraftTree([bad], [-1]), tree] * COUNT), max_batch=3)
    assert [one.token_ids for one in llm.generate(pair.prompts[:3], params)] == [
        one.token_ids for one in want
    ]


def test_a_cancelled_prefill_leaves_no_broken_keys(pair: Pair) -> None:
    bad = unused(pair)
    llm = LLM(broken(pair.target, bad), "none", max_batch=1, keep_prefixes=2)
    llm.model.prefill_chunk = 4
    prompt = pair.prompts[0]
    requests = llm._inputs.request_groups([[*prompt[:20], bad, *prompt * 3]], SHORT)[0]
    handles = llm._engine.submit(requests)
    for _ in range(8):
        llm._engine.step()
    assert not handles[0].done
    llm._engine.withdraw(handles)
    (want,) = LLM(pair.target, "none").generate([prompt[:20]], SHORT)
    assert llm.generate([prompt[:20]], SHORT)[0].token_ids == want.token_ids
    assert llm.generate([prompt], SHORT)[0].token_ids == pair.answers[0][:COUNT]


OPTIONS = (SHORT, SAMPLED, SamplingParams(COUNT, repetition_penalty=1.3))


@pytest.fixture(scope="module")
def plain_answers(pair: Pair) -> list[list[list[int]]]:
    """Return the outputs of plain decoding for each of `OPTIONS`."""
    llm = LLM(pair.target, "none")
    return [[out.token_ids for out in llm.generate(pair.prompts[:2], params)] for params in OPTIONS]


@pytest.fixture(scope="module")
def bad_drafts(pair: Pair) -> list[Any]:
    first = pair.prompts[0]
    return [broken(pair.draft), broken(pair.draft, first[-1]), broken(pair.draft, first[3], INF)]


WITH_DRAFTS = ("draft_model", "specdec_pp", "ouroboros", "auto")


@pytest.mark.parametrize(
    ("spec", "index"),
    [
        pytest.param(spec, index, marks=() if spec in WITH_DRAFTS else pytest.mark.slow)
        for spec in SPECS
        if spec.startswith(WITH_DRAFTS)
        for index in range(len(OPTIONS))
    ],
)
def test_a_broken_draft_model_does_not_change_outputs(
    pair: Pair,
    plain_answers: list[list[list[int]]],
    bad_drafts: list[Any],
    spec: str,
    index: int,
) -> None:
    params = OPTIONS[index]
    for draft in bad_drafts:
        llm = engine(pair, pair.target, spec, draft)
        found = llm.generate(pair.prompts[:2], params)
        assert all(one.finish_reason for one in found)
        if params.greedy or spec in SAME_SEED:
            assert [one.token_ids for one in found] == plain_answers[index]


def test_broken_draft_probabilities_keep_the_distribution(pair: Pair) -> None:
    """Probabilities that are NaN are never accepted, and do not change the residual
    distribution.
    """
    probs = torch.full((256,), NAN)

    class Draws(ScriptedDrafter):
        def draws(self, request: Any) -> bool:
            return True

    params = [SamplingParams(1, temperature=1.0, seed=seed) for seed in range(300)]
    drawn = [
        [
            one.token_ids[0]
            for one in LLM(pair.target, drafter, max_batch=300).generate(
                [pair.prompts[3]] * 300, params
            )
        ]
        for drafter in (Draws([DraftTree([3], [-1], [probs])]), "none")
    ]
    counts = [np.bincount(tokens, minlength=256) for tokens in drawn]
    assert abs(counts[0] - counts[1]).max() < 60


def test_the_error_names_the_logits_processor(pair: Pair) -> None:
    def spoil(ids: Any, scores: Any) -> Any:
        return scores * NAN

    for params in (SHORT, SAMPLED):
        own = SamplingParams(COUNT, temperature=params.temperature, logits_processors=[spoil])
        with pytest.raises(
            ConfigError, match=r"logits_processors: got scores that are not numbers.*'spoil'"
        ):
            LLM(pair.target, "auto").generate([pair.prompts[0]], own)


def test_a_logits_processor_may_repair_logits(pair: Pair) -> None:
    bad = unused(pair)
    model = broken(pair.target, bad)
    repaired = SamplingParams(COUNT, logits_processors=[InfNanRemoveLogitsProcessor()])
    llm = LLM(model, "prompt_lookup:budget=false", max_batch=1)
    assert llm.generate([[bad, *pair.prompts[0]]], repaired)[0].token_ids == [0] * COUNT
    assert llm.generate([pair.prompts[0]], SHORT)[0].token_ids == pair.answers[0][:COUNT]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_strategy_raises_for_broken_logits(pair: Pair, batch: int, sampled: bool) -> None:
    ids, model = torch.tensor([pair.prompts[0]] * batch), broken(pair.target)
    options = {
        "custom_generate": Strategy("prompt_lookup"),
        "max_new_tokens": 4,
        "do_sample": sampled,
        "pad_token_id": 0,
    }
    with pytest.raises(LogitsError, match="not numbers"):
        model.generate(ids, **options)
    if not sampled:
        repaired = model.generate(ids, remove_invalid_values=True, **options)
        assert (
            repaired.tolist()
            == model.generate(
                ids, **{**options, "custom_generate": None}, remove_invalid_values=True
            ).tolist()
        )


def test_the_server_reports_the_error_to_one_client(pair: Pair, tokenizer: Any) -> None:
    bad = unused(pair)
    llm = LLM(broken(pair.target, bad), "auto", tokenizer=tokenizer, max_batch=4)
    with served(llm) as server:
        answers: dict[int, httpx2.Response] = {}

        def ask(index: int, prompt: list[int]) -> None:
            answers[index] = server.post(
                "/v1/completions",
                {"prompt": prompt, "max_tokens": 6, "temperature": 0, "stream": index == 2},
                headers={"authorization": f"Bearer {KEY}"},
            )

        prompts = [
            pair.prompts[0],
            [bad, *pair.prompts[1]],
            [bad, *pair.prompts[2]],
            pair.prompts[3],
        ]
        threads = [threading.Thread(target=ask, args=one) for one in enumerate(prompts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answers[index].status_code for index in (0, 1, 3)] == [200, 500, 200]
        assert "not numbers" in answers[1].json()["error"]["message"]
        assert answers[2].text.count("not numbers") == 1
        assert server.open_work() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("vocab", [256, 257])
def test_rows_that_are_not_numbers_are_marked(dtype: torch.dtype, vocab: int) -> None:
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = logits.argmax(-1)
    logits[1, 5], logits[2, 250], logits[3] = NAN, INF, -INF
    logits[4, 1:] = -INF
    expected[[1, 2, 3, 4]] = torch.tensor([NO_TOKEN, NO_TOKEN, NO_TOKEN, 0])
    assert torch.equal(argmax(logits), expected)
    tokens, probs = topk(logits, 3)
    assert (probs[[1, 2, 3]] == 0).all()
    assert ((tokens >= 0) & (tokens < vocab)).all()
    assert probs[4].tolist() == [1.0, 0.0, 0.0]
    whole = logits[[0, 5, 6, 7]].float().softmax(-1).topk(3)
    assert np.allclose(probs[[0, 5, 6, 7]], whole.values.numpy(), atol=1e-3)
