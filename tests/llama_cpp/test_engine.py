"""Test `LLM` with llama.cpp: equal answers with every drafter, alone and in batches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError, PacelineError, UnsupportedModelError
from tests.support.gguf_architectures import write_experts
from tests.support.llama_cpp import needs_library

pytestmark = needs_library
PROMPTS = [[5, 9, 11, 5, 9, 11, 5], [30, 31, 32], [8, 8, 8, 8], [40, 3, 40, 3, 40] * 6]
DRAFTERS = ["prompt_lookup", "token_recycling", "lookahead", "jacobi", "auto", "sssd", "pia"]
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)


def load(file: Path, drafter: str = "none", **options: Any) -> LLM:
    return LLM(str(file), drafter, engine="llama.cpp", device="cpu", **options)


def answer_ids(llm: LLM, params: Any = GREEDY, prompts: Any = None) -> list[list[int]]:
    return [each.token_ids for each in llm.generate(prompts or PROMPTS, params)]


@pytest.fixture(scope="module")
def plain(file: Path) -> LLM:
    return load(file, max_batch=1)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_equal_plain_decoding(file: Path, plain: LLM, drafter: str) -> None:
    llm = load(file, drafter, max_batch=3)
    llm.drafter.budget = False
    assert llm.invariance.on
    answers = llm.generate(PROMPTS, GREEDY)
    assert [answer.token_ids for answer in answers] == answer_ids(plain)
    assert sum(answer.stats.drafted_tokens for answer in answers) > 0
    assert llm.model.open_sequences == 0


@pytest.mark.parametrize("drafter", ["prompt_lookup", "auto"])
def test_mixtures_of_experts_run(tmp_path: Path, drafter: str) -> None:
    experts = write_experts(tmp_path / "experts.gguf")
    expected = answer_ids(load(experts, max_batch=1))
    llm = load(experts, drafter, max_batch=3)
    llm.drafter.budget = False
    assert llm.tokenizer is not None
    assert llm.invariance.on
    assert answer_ids(llm) == expected
    assert llm.generate(["ab ab"], GREEDY)[0].token_ids


@pytest.mark.parametrize("drafter", ["prompt_lookup", "token_recycling"])
def test_sampled_answers_depend_on_the_seed_only(file: Path, plain: LLM, drafter: str) -> None:
    params = SamplingParams(
        max_new_tokens=24,
        temperature=0.8,
        top_p=0.9,
        seed=3,
        n=2,
        repetition_penalty=1.1,
        frequency_penalty=0.3,
        logprobs=2,
        ignore_eos=True,
    )
    expected = plain.generate(PROMPTS, params)
    llm = load(file, drafter)
    llm.drafter.budget = False
    answers = llm.generate(PROMPTS, params)
    for one, other in zip(expected, answers, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
        assert [each.token_ids for each in one.others] == [each.token_ids for each in other.others]


def test_chunks_prefixes_and_preemption_change_nothing(file: Path, plain: LLM) -> None:
    long = [[(7 * place + row) % 60 for place in range(90)] for row in range(5)]
    expected = answer_ids(plain, GREEDY, long)
    llm = load(file, "prompt_lookup", keep_prefixes=2, max_batch=4, cache_gib=0.00008)
    assert answer_ids(llm, GREEDY, long) == expected
    follow_up = [[*long[-1], *expected[-1], 9]]
    assert answer_ids(llm, GREEDY, follow_up) == answer_ids(plain, GREEDY, follow_up)
    assert llm.load.prefix_hits > 80
    assert llm.load.preemptions > 0 or llm.model.open_sequences <= 2


def test_prompt_logprobs(file: Path, plain: LLM) -> None:
    params = SamplingParams(max_new_tokens=1, prompt_logprobs=1)
    (answer,) = plain.generate([PROMPTS[3]], params)
    assert answer.prompt_logprobs is not None
    assert len(answer.prompt_logprobs) == len(PROMPTS[3])
    assert answer.prompt_logprobs[0] is None


def test_closed_stream_frees_its_sequence(file: Path, plain: LLM) -> None:
    llm = load(file, "prompt_lookup")
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    other = llm.stream(PROMPTS[3], GREEDY)
    next(other)
    stream.close()
    ids = [token for chunk in other for token in chunk.token_ids]
    assert ids == answer_ids(plain)[3][-len(ids) :]
    assert llm.model.open_sequences == 0


def test_cancelled_calls_do_not_affect_others(file: Path, plain: LLM) -> None:
    llm = load(file, "token_recycling", max_batch=4)

    async def run() -> list[list[int]]:
        calls = [asyncio.create_task(llm.agenerate([ids], GREEDY)) for ids in PROMPTS * 2]
        await asyncio.sleep(0)
        for call in calls[::3]:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [each[0].token_ids for each in done if isinstance(each, list)]

    expected = answer_ids(plain)
    assert all(answer in expected for answer in asyncio.run(run()))
    assert llm.model.open_sequences == 0


def test_tokenizer_and_chat_template_come_from_the_file(file: Path) -> None:
    llm = load(file, "none")
    assert llm.tokenizer is not None
    assert llm.eos_token_ids == [2, 7]
    answer = llm.chat([{"role": "user", "content": "ab"}], SamplingParams(max_new_tokens=3))
    assert len(answer.token_ids) <= 3


def test_invalid_options_get_one_line(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a GGUF file"):
        LLM("demo", engine="llama.cpp")
    with pytest.raises(ConfigError, match="no GGUF file at"):
        load(tmp_path / "missing.gguf")
    with pytest.raises(ConfigError, match=r"Did you mean 'llama.cpp'"):
        LLM(str(file), engine="llamacpp")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dtype: got 'float32'"):
        load(file, dtype="float32")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(PacelineError):
        load(damaged)


def test_batch_invariance_can_be_required_or_switched_off(file: Path) -> None:
    assert not load(file, batch_invariant=False).invariance.on
    assert load(file, batch_invariant=True).invariance.on


def test_drafters_that_read_states_are_refused(file: Path) -> None:
    llm = load(file)
    with pytest.raises(UnsupportedModelError, match="does not give access"):
        llm.model.model.get_input_embeddings()
