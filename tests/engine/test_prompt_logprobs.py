"""Test log-probabilities of prompts against transformers, and requests for no tokens."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline import LLM, Completion, DraftTree, SamplingParams
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.engine.grouping import select_prompts
from paceline.errors import CapacityError, ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.verification.logprobs import score_prompts
from tests.support.models import make
from tests.support.shared import MOST_SPECS, Pair

SCORED = SamplingParams(0, prompt_logprobs=3)
LENGTHS = (1, 2, 33, 70, 140, 64)


def prompts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """Return prompts of these lengths, each a prefix of the longer ones."""
    return [[(7 * place + place * place) % 60 + 2 for place in range(length)] for length in lengths]


def check_logprobs(model: Any, prompt: list[int], found: Completion, count: int = 3) -> None:
    """Compare the prompt's log-probabilities with a forward pass of transformers."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt])).logits[0].float()
    rows = found.prompt_logprobs
    assert rows is not None
    assert (len(rows), rows[0]) == (len(prompt), None)
    for place, row in enumerate(rows[1:], 1):
        assert row is not None
        wanted = logits[place - 1].log_softmax(-1)
        best = wanted.topk(count)
        assert list(row)[:count] == best.indices.tolist()
        assert set(row) == {*best.indices.tolist(), prompt[place]}
        assert row == pytest.approx({token: float(wanted[token]) for token in row}, abs=1e-4)


@pytest.mark.parametrize("spec", MOST_SPECS)
def test_prompt_logprobs_equal_transformers(pair: Pair, spec: str) -> None:
    """Check every drafter, in batches with requests that score no prompt."""
    llm = pair.engine(spec, max_batch=4)
    some = pair.prompts[:6]
    params = [
        SamplingParams(8, prompt_logprobs=3 if place % 2 else None) for place in range(len(some))
    ]
    for prompt, one, out in zip(some, params, llm.generate(some, params), strict=True):
        assert out.token_ids == pair.answers[pair.prompts.index(prompt)][:8]
        if one.prompt_logprobs is None:
            assert out.prompt_logprobs is None
        else:
            check_logprobs(pair.target, prompt, out)
    for prompt, out in zip(some, llm.generate(some, SCORED), strict=True):
        assert (out.token_ids, out.text, out.finish_reason) == ([], "", "length")
        assert out.stats.drafted_tokens == out.stats.draft_forwards == 0
        check_logprobs(pair.target, prompt, out)
    assert llm.model.open_sequences == 0


@pytest.mark.parametrize("chunk", [16, 512])
@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        ("llama", "sdpa"),
        ("gemma2", "eager"),
        ("gpt2", "sdpa"),
        ("bloom", "eager"),
        ("phi3_longrope", "sdpa"),
    ],
)
def test_in_batches_and_chunks(name: str, implementation: str, chunk: int) -> None:
    """Check packed, padded and chunked prompts and length-dependent rotary frequencies."""
    model = make(name, implementation)
    llm = LLM(model, "prompt_lookup", max_batch=4)
    llm.model.prefill_chunk = chunk
    for prompt, out in zip(
        prompts(), llm.generate(prompts(), SamplingParams(4, prompt_logprobs=3)), strict=True
    ):
        check_logprobs(model, prompt, out)
        assert (
            out.token_ids == LLM(model, "none").generate([prompt], SamplingParams(4))[0].token_ids
        )


def test_cached_prefix_is_computed_again_for_scores() -> None:
    model = make("llama", "sdpa")
    llm = LLM(model, "none", keep_prefixes=4)
    long = prompts([140])[0]
    for _ in range(2):
        (out,) = llm.generate([long], SCORED)
        assert out.stats.cached_tokens == 0
        check_logprobs(model, long, out)
    assert (
        llm.generate([long], SamplingParams(2))[0].stats.cached_tokens == 139
    )  # requests without scores reuse it


def test_request_for_no_tokens_fills_the_cache() -> None:
    llm = LLM(make("llama", "sdpa"), "none", keep_prefixes=1)
    long = prompts([140])[0]
    (out,) = llm.generate([long[:100]], SamplingParams(0))
    assert (out.token_ids, out.finish_reason, out.prompt_logprobs, out.logprobs) == (
        [],
        "length",
        None,
        None,
    )
    assert out.stats.new_tokens == 0
    assert out.stats.tokens_per_forward == 0.0
    assert llm.generate([long], SamplingParams(2))[0].stats.cached_tokens == 100
    assert llm.generate([long], SamplingParams(0, logprobs=2))[0].logprobs == []


def test_preempted_requests_are_scored_once() -> None:
    model = make("llama", "sdpa")
    first = LLM(model, "none")
    limit = 2 * 184 * first.model.position_bytes / (1 << 30)
    llm = LLM(model, "none", max_batch=3, cache_gib=limit)
    each = prompts([20, 24, 28])
    for prompt, out in zip(
        each,
        llm.generate(each, SamplingParams(150, ignore_eos=True, prompt_logprobs=3)),
        strict=True,
    ):
        check_logprobs(model, prompt, out)
    assert llm.load.preemptions > 0


def test_priority_preempts_a_request_being_scored() -> None:
    """Check that the preempted request is scored again from its first token."""
    model = make("llama", "sdpa")
    llm = LLM(model, "none", max_batch=1)
    llm.model.prefill_chunk = 16
    low, high = (SamplingParams(2, prompt_logprobs=3, priority=priority) for priority in (1, 0))
    engine, prompt = llm._engine, prompts([140])[0]
    first, second = (llm._inputs.requests([prompt], one)[0] for one in (low, high))
    handles = engine.submit([first])
    for _ in range(3):
        engine.step()
    assert first.prompt_logprobs is not None
    assert 1 < len(first.prompt_logprobs) < 140
    engine.finish([*handles, *engine.submit([second])])
    assert engine.load.preemptions == 1
    assert first.prompt_logprobs == second.prompt_logprobs
    check_logprobs(model, prompt, llm.generate([prompt], low)[0])


def test_prompt_of_full_context_length_is_scored() -> None:
    model = make("llama", "sdpa")
    llm = LLM(model, "none", max_length=64)
    (prompt,) = prompts([64])
    check_logprobs(model, prompt, llm.generate([prompt], SCORED)[0])
    with pytest.raises(CapacityError, match="64 tokens, which leave no room for an answer"):
        llm.generate([prompt], SamplingParams(1, prompt_logprobs=3))
    with pytest.raises(CapacityError, match="65 tokens"):
        llm.generate([[*prompt, 3]], SCORED)


def test_parallel_answers_score_the_prompt_once() -> None:
    model = make("llama", "sdpa")
    (prompt,) = prompts([33])
    (out,) = LLM(model, "none").generate(
        [prompt], SamplingParams(4, temperature=1.0, n=3, prompt_logprobs=3)
    )
    check_logprobs(model, prompt, out)
    assert [one.prompt_logprobs for one in out.others] == [None, None]


def test_streams_return_prompt_logprobs_first(pair: Pair) -> None:
    llm = pair.engine("prompt_lookup")
    prompt = pair.prompts[0]
    for params in (SamplingParams(6, prompt_logprobs=3), SCORED):
        (whole,) = llm.generate([prompt], params)
        chunks = list(llm.stream(prompt, params))
        assert [chunk.prompt_logprobs for chunk in chunks] == [
            whole.prompt_logprobs,
            *[None] * (len(chunks) - 1),
        ]
        assert chunks[-1].completion is not None
        assert chunks[-1].completion.prompt_logprobs == whole.prompt_logprobs
        assert "".join(chunk.text for chunk in chunks) == whole.text
        (other,) = asyncio.run(llm.agenerate([prompt], params))
        assert other.prompt_logprobs == whole.prompt_logprobs


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_answers_keep_their_bits(pair: Pair, dtype: str) -> None:
    """Check that under batch invariance, scoring changes no bit of an answer."""
    import copy

    model = copy.deepcopy(pair.target).to(getattr(torch, dtype))
    llm = LLM(model, "prompt_lookup", batch_invariant=True)
    some = pair.prompts[:4]
    plain = llm.generate(some, SamplingParams(12, logprobs=2))
    scored = llm.generate(some, SamplingParams(12, logprobs=2, prompt_logprobs=2))
    assert [(out.token_ids, out.logprobs) for out in scored] == [
        (out.token_ids, out.logprobs) for out in plain
    ]
    alone = [llm.generate([prompt], SamplingParams(0, prompt_logprobs=2))[0] for prompt in some]
    assert [out.prompt_logprobs for out in alone] == [out.prompt_logprobs for out in scored]


@pytest.mark.parametrize("spec", ["none", "prompt_lookup"])
def test_order_of_equal_logits_does_not_depend_on_the_batch(spec: str) -> None:
    """The lowest of equally likely tokens comes first, however many the other requests ask for."""
    model = copy.deepcopy(make("llama", "sdpa")).bfloat16()
    with torch.no_grad():
        model.lm_head.weight[1::2] = model.lm_head.weight[:-1:2]  # pairs of equal logits
        model.lm_head.weight[-1] = -100.0
    llm = LLM(model, spec, max_batch=4)
    counts = (1, 3, 40)
    params = [SamplingParams(12, logprobs=n, prompt_logprobs=n, ignore_eos=True) for n in counts]
    for prompt in prompts((33, 70)):
        together = llm.generate([prompt] * len(params), params)
        rows = [_best_tokens(out, count) for count, out in zip(counts, together, strict=True)]
        for count, some in zip(counts, rows, strict=True):
            assert some == [row[:count] for row in rows[-1]]
        for row in rows[-1]:
            assert row == sorted(row, key=lambda entry: (-entry[1], entry[0]))
        assert [row[0][0] for row in rows[0][: len(together[0].token_ids)]] == together[0].token_ids


def _best_tokens(out: Completion, count: int) -> list[list[tuple[int, float]]]:
    """Return the reported tokens of the answer and of the prompt, without the chosen ones."""
    assert out.logprobs is not None
    assert out.prompt_logprobs is not None
    rows = [*out.logprobs, *filter(None, out.prompt_logprobs)]
    return [list(row.items())[:count] for row in rows]


def test_few_prompts_are_scored_together() -> None:
    """Check that the batch is limited, as each scored row has logits for all tokens."""
    llm = LLM(make("llama", "sdpa"), "none")
    for params, count in ((SCORED, 3), (SamplingParams(1), 5)):
        handles = llm._engine.submit(llm._inputs.requests(prompts([150] * 5), params))
        llm._engine.admit()
        assert len(select_prompts(handles, 512, packed=True)) == count
        llm._engine.withdraw(handles)


@pytest.mark.parametrize(
    "options", [{"prompt_logprobs": -1}, {"prompt_logprobs": True}, {"prompt_logprobs": 1.5}]
)
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"prompt_logprobs: got .*; expected an integer of at least 0, or None"
    ):
        SamplingParams(0, **options)
    with pytest.raises(
        ConfigError, match="max_new_tokens: got -1; expected an integer of at least 0"
    ):
        SamplingParams(-1)


@pytest.mark.parametrize(("name", "implementation"), [("llama", "sdpa"), ("gemma2", "eager")])
def test_scored_rows_do_not_shift_hidden_states(name: str, implementation: str) -> None:
    model = CachedLM(make(name, implementation))

    def states(scored: bool) -> NodeLogits:
        requests = [
            Request(prompt, SamplingParams(1, prompt_logprobs=0)) for prompt in prompts([9, 12, 10])
        ]
        requests[1].prompt_logprobs = [None] if scored else None
        for request in requests:
            model.open(request)
        trees = [DraftTree([5, 6], [-1, 0]), DraftTree([7], [-1]), DraftTree([], [])]
        logits = model.forward_with_states(requests, trees, (1,), pending=True)
        found = score_prompts(requests, logits, model.prefill_chunk)
        assert [len(request.prompt_logprobs or ()) for request in requests] == [
            0,
            12 if scored else 0,
            0,
        ]
        for request in requests:
            model.close(request)
        return found

    plain, scored = states(False), states(True)
    assert (scored.starts, scored.counts) == ([0, 3, 5], plain.counts)
    for found, wanted in ((scored.flat, plain.flat), (scored.states, plain.states)):
        assert found is not None
        assert wanted is not None
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(scored.pending or (), plain.pending or (), strict=True):
        torch.testing.assert_close(found, wanted)
