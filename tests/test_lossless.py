"""Test that every drafter is lossless.

Greedy outputs equal those of `model.generate`, and sampled outputs those of plain decoding with
the same seed.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from paceline import LLM, Drafter, DraftTree, Outcome, SamplingParams
from paceline.core.request import Request
from paceline.drafters.contract import leftovers
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.model.cached_lm import CachedLM
from tests.support.drafters import ScriptedTree
from tests.support.models import make
from tests.support.shared import COUNT, MOST_SPECS, SAME_SEED, SPECS, VARIANTS, Pair, reference


def with_batches(small: int, large: int) -> list[Any]:
    """Return every spec with both batch sizes; variants are slow with the small one."""
    return [
        pytest.param(
            spec, batch, marks=pytest.mark.slow if spec in VARIANTS and batch == small else ()
        )
        for spec in SPECS
        for batch in (small, large)
    ]


@pytest.mark.parametrize(("name", "batch"), with_batches(1, 3))
def test_greedy_equals_generate(pair: Pair, name: str, batch: int) -> None:
    """Run more prompts than slots, with different lengths.

    Tests below run eight requests at a time, with end tokens.
    """
    llm = pair.engine(name, max_batch=batch)
    rng = random.Random(batch)
    chosen = slice(0, None, 2 if batch == 1 else 1)
    prompts, answers = pair.prompts[chosen], pair.answers[chosen]
    lengths = [rng.randrange(2, COUNT) for _ in prompts]
    outs = llm.generate(prompts, [SamplingParams(max_new_tokens=length) for length in lengths])
    assert [out.token_ids for out in outs] == [
        answer[:length] for answer, length in zip(answers, lengths, strict=True)
    ]
    assert llm.model.open_sequences == 0
    for out in outs:
        stats = out.stats
        assert stats.new_tokens == len(out.token_ids)
        assert len(stats.query_tokens) == stats.target_forwards
        assert stats.new_tokens <= stats.target_forwards + stats.accepted_tokens
        assert stats.accepted_tokens <= stats.drafted_tokens
    # Equality proves little unless drafts are accepted. With a budget, few drafts are verified.
    if name != "none" and "budget=true" not in name:
        assert sum(out.stats.accepted_tokens for out in outs) > sum(lengths) // 9
        assert sum(out.stats.drafted_tokens - out.stats.accepted_tokens for out in outs) > 0


@pytest.mark.parametrize("name", MOST_SPECS)
def test_greedy_with_a_repetition_penalty_equals_generate(pair: Pair, name: str) -> None:
    """The penalty applies to the correct prefix of every node."""
    expected = [
        reference(pair.target, prompt, 20, repetition_penalty=1.4) for prompt in pair.prompts
    ]
    outs = pair.engine(name).generate(
        pair.prompts, SamplingParams(max_new_tokens=20, repetition_penalty=1.4)
    )
    assert [out.token_ids for out in outs] == expected


@pytest.mark.parametrize("name", MOST_SPECS)
def test_several_end_tokens(pair: Pair, name: str) -> None:
    """Outputs end at the first end token, even within accepted drafts."""
    ends = [pair.answers[1][6], pair.answers[5][9]]
    expected = [reference(pair.target, prompt, COUNT, eos_token_id=ends) for prompt in pair.prompts]
    assert sum(len(answer) < COUNT for answer in expected) >= 3
    llm = pair.engine(name)
    llm.eos_token_ids = ends
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in outs] == expected
    assert [out.finish_reason for out in outs] == [
        "stop" if answer[-1] in ends else "length" for answer in expected
    ]
    on = llm.generate(pair.prompts[:6], SamplingParams(max_new_tokens=COUNT, ignore_eos=True))
    assert [out.token_ids for out in on] == pair.answers[:6]


@pytest.mark.parametrize("name", MOST_SPECS)
def test_stop_strings(pair: Pair, tokenizer: Any, name: str) -> None:
    """Tokens equal those of `generate`, and the text ends before the stop string.

    The stop strings start or end within tokens.
    """
    texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in pair.answers]
    stop = (texts[1][7:10], texts[6][11:14], texts[10][9:12])
    expected = [
        reference(pair.target, prompt, COUNT, stop_strings=list(stop), tokenizer=tokenizer)
        for prompt in pair.prompts
    ]
    assert sum(len(answer) < COUNT for answer in expected) >= 3
    llm = pair.engine(name, tokenizer=tokenizer)
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT, stop=stop))
    assert [out.token_ids for out in outs] == expected
    for out, text in zip(outs, texts, strict=True):
        cut = min((text.find(word) for word in stop if word in text), default=None)
        assert out.text == text[:cut]
        assert out.finish_reason == ("length" if cut is None else "stop")


@pytest.mark.parametrize("name", MOST_SPECS)
def test_length_limits_are_exact(pair: Pair, name: str) -> None:
    """Check limits of 1 to 12 tokens, set by max_new_tokens or by the context length."""
    llm = pair.engine(name)
    limits = range(1, 13)
    outs = llm.generate(pair.prompts, [SamplingParams(max_new_tokens=limit) for limit in limits])
    assert [out.token_ids for out in outs] == [
        answer[:limit] for answer, limit in zip(pair.answers, limits, strict=True)
    ]
    assert {out.finish_reason for out in outs} == {"length"}
    for limit in limits:
        (out,) = llm.generate([pair.prompts[6]], SamplingParams(max_new_tokens=limit))
        assert out.token_ids == pair.answers[6][:limit]
    short = pair.engine(name, max_length=len(pair.prompts[6]) + 5)
    (out,) = short.generate([pair.prompts[6]], SamplingParams(max_new_tokens=COUNT))
    assert (out.token_ids, out.finish_reason) == (pair.answers[6][:5], "length")


@pytest.mark.parametrize("name", MOST_SPECS)
def test_chunked_prefill_is_lossless(pair: Pair, name: str) -> None:
    llm = pair.engine(name, max_batch=3)
    llm.model.prefill_chunk = 4
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=12))
    assert [out.token_ids for out in outs] == [answer[:12] for answer in pair.answers]
    for out, prompt in zip(outs, pair.prompts, strict=True):
        assert out.stats.prefill_forwards == -(-len(prompt) // 4)


@pytest.mark.parametrize("name", MOST_SPECS)
def test_reused_slots_keep_nothing(pair: Pair, name: str) -> None:
    """One engine serves many calls, and no call may affect the next."""
    llm = pair.engine(name, max_batch=4)
    fresh = pair.engine(name, max_batch=4)
    kinds = [
        SamplingParams(max_new_tokens=9, temperature=0.9, repetition_penalty=penalty)
        for penalty in (1.0, 1.4)
    ]
    prompts = pair.prompts[:7]
    chosen = [kinds[index % 3 == 0] for index in range(len(prompts))]
    llm.generate(pair.prompts[:-8:-1], chosen)
    assert [out.token_ids for out in llm.generate(prompts, chosen)] == [
        out.token_ids for out in fresh.generate(prompts, chosen)
    ]


TRUNCATIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3, "top_k": 20, "top_p": 0.9},
]
MIXED = [SamplingParams(18, 0.7, seed=seed, **rest) for seed, rest in enumerate(TRUNCATIONS)]
MIXED += [SamplingParams(18, 1.0, seed=seed, **rest) for seed, rest in enumerate(TRUNCATIONS, 5)]
MIXED += [SamplingParams(18), SamplingParams(11, 1.3, seed=-5)]


# By default, two drafters are sampled alone: one drafts chains and the other trees.
ALONE = ("draft_model:verification=follow", "auto")
IN_BATCHES = [spec for spec in SAME_SEED if spec not in VARIANTS]


@pytest.fixture(scope="module")
def sampled(pair: Pair) -> list[list[int]]:
    """Return outputs of plain decoding of single requests, with mixed parameters."""
    llm = LLM(pair.target, "none", max_batch=1)
    return [out.token_ids for out in llm.generate(pair.prompts, MIXED)]


@pytest.mark.parametrize(
    ("spec", "batch"),
    [
        pytest.param(
            spec,
            batch,
            marks=() if spec in (ALONE if batch == 1 else IN_BATCHES) else pytest.mark.slow,
        )
        for spec in SAME_SEED
        for batch in (1, 5)
    ],
)
def test_sampled_outputs_equal_plain_decoding(
    pair: Pair, sampled: list[list[int]], spec: str, batch: int
) -> None:
    """Check every drafter of guesses with several batch sizes, orders and neighbours."""
    llm = pair.engine(spec, max_batch=batch)
    order = random.Random(batch).sample(range(len(pair.prompts)), len(pair.prompts))
    outs = llm.generate([pair.prompts[i] for i in order], [MIXED[i] for i in order])
    assert [out.token_ids for out in outs] == [sampled[i] for i in order]


def test_seeds_give_different_outputs(pair: Pair) -> None:
    llm = LLM(pair.target, "none")
    texts = {
        tuple(llm.generate([pair.prompts[1]], SamplingParams(8, 1.0, seed=seed))[0].token_ids)
        for seed in range(8)
    }
    assert len(texts) > 5


@pytest.mark.parametrize("spec", ["draft_model", "draft_model:verification=follow"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_with_a_shorter_context(pair: Pair, spec: str, temperature: float) -> None:
    """The draft model stops drafting at the end of its context.

    Some prompts start beyond it, and others cross it.
    """
    llm = LLM(pair.target, drafter=spec, draft_model=short_draft())
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT, temperature=temperature))
    assert any(out.stats.drafted_tokens == 0 for out in outs)
    assert any(out.stats.drafted_tokens > 0 for out in outs)
    if temperature == 0.0:
        assert [out.token_ids for out in outs] == pair.answers
    elif "follow" in spec:
        plain = LLM(pair.target, "none").generate(
            pair.prompts, SamplingParams(max_new_tokens=COUNT, temperature=temperature)
        )
        assert [out.token_ids for out in outs] == [out.token_ids for out in plain]


@functools.cache
def short_draft() -> Any:
    """Return a GPT-2 with 28 learned positions; one more would be an index error."""
    return make("gpt2_short")


class RecordingDraftModel(DraftModel):
    """Draft model that records its proposals and the tokens before them."""

    notes: list[tuple[list[int], list[int]]]

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        trees = super().propose(requests, max_nodes)
        self.notes += [
            (list(request.token_ids), tree.token_ids)
            for request, tree in zip(requests, trees, strict=True)
        ]
        return trees


def test_drafts_equal_greedy_decoding_of_the_draft_model(pair: Pair) -> None:
    """Rejected drafts must leave nothing in the draft model's cache."""
    drafter = RecordingDraftModel(DraftModelOptions(max_draft_tokens=4), CachedLM(pair.draft))
    drafter.notes = []
    outs = LLM(pair.target, drafter=drafter, max_batch=4).generate(
        pair.prompts, SamplingParams(max_new_tokens=20)
    )
    assert any(out.stats.accepted_tokens < out.stats.drafted_tokens for out in outs)
    for tokens, proposed in drafter.notes:
        assert not proposed or proposed == reference(
            pair.draft, tokens, len(proposed), eos_token_id=None
        )


STREAMED = [SamplingParams(20), SamplingParams(20, 1.0, seed=3, stop=("e.", "a", "zz"))]


@pytest.mark.parametrize("name", MOST_SPECS)
def test_a_stream_adds_up_to_the_completion(pair: Pair, tokenizer: Any, name: str) -> None:
    """Compare two engines with the same history, since drafters learn from it.

    Acceptance is compared only without a budget, which depends on measured time.
    """
    whole, streamed = (pair.engine(name, tokenizer=tokenizer) for _ in range(2))
    for prompt, params in zip(pair.prompts[5:9], STREAMED * 2, strict=True):
        (out,) = whole.generate([prompt], params)
        chunks = list(streamed.stream(prompt, params))
        assert [token for chunk in chunks for token in chunk.token_ids] == out.token_ids
        assert "".join(chunk.text for chunk in chunks) == out.text
        assert all("".join(text for text, _ in chunk.pieces) == chunk.text for chunk in chunks)
        assert all(len(chunk.accepted) == len(chunk.token_ids) for chunk in chunks)
        last = chunks[-1].completion
        assert last is not None
        assert (
            sum(flag for chunk in chunks for flag in chunk.accepted) == last.stats.accepted_tokens
        )
        if "budget=true" not in name:
            assert last.stats.accepted_tokens == out.stats.accepted_tokens
        assert (last.text, last.token_ids, last.finish_reason) == (
            out.text,
            out.token_ids,
            out.finish_reason,
        )
        assert all(chunk.completion is None for chunk in chunks[:-1])


@pytest.mark.parametrize("name", MOST_SPECS)
def test_a_stream_contains_no_part_of_a_stop_string(pair: Pair, tokenizer: Any, name: str) -> None:
    """Check stop strings across steps, and strings of which only the beginning occurs."""
    llm = pair.engine(name, tokenizer=tokenizer)
    for index, row in enumerate((1, 5, 6, 7)):
        text = tokenizer.decode(pair.answers[row], skip_special_tokens=True)
        for start in range(4 + index % 2, 12, 2):
            params = SamplingParams(
                COUNT, stop=(text[start : start + 5], text[start + 2 : start + 4] + "é")
            )
            chunks = list(llm.stream(pair.prompts[row], params))
            assert "".join(chunk.text for chunk in chunks) == text[: text.find(params.stop[0])]


@pytest.mark.parametrize("name", MOST_SPECS)
def test_a_stream_closed_early_frees_its_request(pair: Pair, name: str) -> None:
    llm = pair.engine(name)
    before = Request([1], SamplingParams()).id
    stream = llm.stream(pair.prompts[1], SamplingParams(max_new_tokens=COUNT))
    assert next(stream).token_ids == pair.answers[1][:1] or name != "none"
    assert llm.model.open_sequences == 1
    stream.close()
    assert llm.model.open_sequences == 0
    assert leftovers(llm.drafter, range(before, before + 10)) == []
    assert (
        llm.generate([pair.prompts[1]], SamplingParams(max_new_tokens=COUNT))[0].token_ids
        == pair.answers[1]
    )


class Breaking(ScriptedTree):
    """Drafter that fails once, at the third call of one method."""

    def __init__(self, where: str, answers: dict[tuple[int, ...], list[int]]) -> None:
        super().__init__(answers, vocab=256)
        self._where = where
        self._calls = 0

    def _maybe_break(self, where: str) -> None:
        self._calls += where == self._where
        if self._calls == 3:
            self._calls += 1
            raise RuntimeError(f"broken in {where}")

    def start(self, request: Request) -> None:
        super().start(request)
        self._maybe_break("start")

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        self._maybe_break("propose")
        return super().propose(requests, max_nodes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._maybe_break("observe")
        super().observe(outcomes)


@pytest.mark.parametrize("where", ["start", "propose", "observe"])
def test_a_drafter_that_fails_leaves_the_engine_usable(pair: Pair, where: str) -> None:
    drafter = Breaking(
        where,
        {tuple(prompt): answer for prompt, answer in zip(pair.prompts, pair.answers, strict=True)},
    )
    llm = LLM(pair.target, drafter=drafter, max_batch=4)
    with pytest.raises(RuntimeError, match=f"broken in {where}"):
        llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
    assert llm.model.open_sequences == 0
    assert not drafter.open
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in outs] == pair.answers
    assert drafter.side_branches > 0


def test_the_base_class_requires_propose(pair: Pair) -> None:
    llm = LLM(pair.target, drafter=Drafter())
    with pytest.raises(NotImplementedError):
        llm.generate(pair.prompts[:1])
    assert llm.model.open_sequences == 0
