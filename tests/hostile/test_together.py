"""Test threads, processes and engines that share a model, store or file."""

from __future__ import annotations

import asyncio
import copy
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams, datastore
from paceline.drafters import create
from paceline.errors import PacelineError
from paceline.integrations.transformers import Strategy
from tests.hostile.shell import run
from tests.support.shared import COUNT, Pair

pytestmark = pytest.mark.hostile
SPECS = [
    "none",
    "prompt_lookup",
    "jacobi",
    "lookahead:budget=false",
    "pia",
    "sssd",
    "rest",
    "token_recycling",
    "auto",
    "draft_model",
    "ouroboros",
    "specdec_pp",
]


@pytest.mark.parametrize("spec", SPECS)
def test_threads_share_an_engine(pair: Pair, spec: str) -> None:
    llm = pair.engine(spec, max_batch=3)
    settings = copy.deepcopy(pair.target.config.to_dict())
    with ThreadPoolExecutor(6) as threads:
        calls = [
            threads.submit(llm.generate, [prompt], SamplingParams(COUNT))
            for prompt in pair.prompts[:6]
        ]
        calls += [threads.submit(llm.generate, [[999]], SamplingParams(4))]
    assert [one.result()[0].token_ids for one in calls[:-1]] == pair.answers[:6]
    assert isinstance(calls[-1].exception(), PacelineError)
    assert llm.model.open_sequences == 0
    assert pair.target.config.to_dict() == settings


@pytest.mark.parametrize("spec", SPECS)
def test_dropped_streams_free_their_requests(pair: Pair, spec: str) -> None:
    llm = pair.engine(spec)
    for prompt in pair.prompts[:4]:
        stream = llm.stream(prompt, SamplingParams(COUNT))
        next(stream)
        del stream
    assert llm.generate(pair.prompts[:2], SamplingParams(COUNT))[1].token_ids == pair.answers[1]
    assert llm.model.open_sequences == 0


@pytest.mark.parametrize("spec", ["prompt_lookup", "lookahead:budget=false", "pia"])
def test_cancelled_calls_do_not_affect_others(pair: Pair, spec: str) -> None:
    """Cancelled calls of an event loop do not affect the other calls of the engine."""
    llm = pair.engine(spec)

    async def some() -> list[Any]:
        calls = [
            asyncio.create_task(asyncio.to_thread(llm.generate, [prompt], SamplingParams(COUNT)))
            for prompt in pair.prompts[:4]
        ]
        await asyncio.sleep(0.02)
        for call in calls[::2]:
            call.cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(some())
    for index in (1, 3):
        assert found[index][0].token_ids == pair.answers[index]
    assert llm.generate([pair.prompts[0]], SamplingParams(COUNT))[0].token_ids == pair.answers[0]


def test_strategies_and_engines_share_a_model(pair: Pair) -> None:
    llm, strategy = pair.engine("lookahead:budget=false"), Strategy("prompt_lookup")

    def decode(index: int) -> list[int]:
        ids = torch.tensor([pair.prompts[index]])
        out = pair.target.generate(
            ids, max_new_tokens=COUNT, do_sample=False, pad_token_id=0, custom_generate=strategy
        )
        found: list[int] = out[0, ids.shape[1] :].tolist()
        return found

    with ThreadPoolExecutor(4) as threads:
        ours = [
            threads.submit(llm.generate, [prompt], SamplingParams(COUNT))
            for prompt in pair.prompts[:4]
        ]
        theirs = [threads.submit(decode, index) for index in range(4)]
    assert (
        [one.result()[0].token_ids for one in ours]
        == [one.result() for one in theirs]
        == pair.answers[:4]
    )


def test_a_store_may_change_while_it_is_searched(pair: Pair, tmp_path: Path) -> None:
    documents = [list(one) for one in pair.near_copies()]
    datastore.build(tmp_path / "s", documents, 256)
    llm = LLM(pair.target, f"sssd:datastore={tmp_path / 's'},update_datastore=true,budget=false")
    with ThreadPoolExecutor(4) as threads:
        calls = [
            threads.submit(llm.generate, [prompt], SamplingParams(COUNT))
            for prompt in pair.prompts[:6]
        ]
        changes = [threads.submit(datastore.add, tmp_path / "s", documents) for _ in range(2)]
        changes += [threads.submit(datastore.build, tmp_path / "s", documents, 256)]
    assert [one.result()[0].token_ids for one in calls] == pair.answers[:6]
    for change in changes:
        assert change.exception() is None or isinstance(change.exception(), PacelineError)
    assert datastore.verify(tmp_path / "s") == []


def test_an_open_store_may_be_deleted(pair: Pair, tmp_path: Path) -> None:
    datastore.build(tmp_path / "s", [list(one) for one in pair.near_copies()], 256)
    llm = LLM(pair.target, f"rest:datastore={tmp_path / 's'}")
    shutil.rmtree(tmp_path / "s")
    assert llm.generate([pair.prompts[0]], SamplingParams(COUNT))[0].token_ids == pair.answers[0]


def test_two_recordings_of_one_file_do_not_mix(tmp_path: Path, valid_files: Path) -> None:
    words = [
        "record",
        "--out",
        "a.jsonl",
        "--limit",
        "2",
        "--batch",
        "1",
        "-n",
        "12",
        "--dtype",
        "float32",
    ]
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(run, words, tmp_path / name) for name in _folders(tmp_path)]
    ended = [one.result() for one in both]
    assert sorted(one.status for one in ended) in ([0, 0], [0, 2]), ended
    for one in ended:
        one.check_clean()


def _folders(tmp_path: Path) -> list[str]:
    """Return two names of the same folder, so that each command has other streams."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    return ["real", "link"]


def test_two_engines_may_write_one_pool(tmp_path: Path, pair: Pair) -> None:
    spec = f"ouroboros:pool_file={tmp_path / 'pool.safetensors'}"
    drafters = [create(spec, draft_model=pair.draft) for _ in range(2)]
    llms = [LLM(pair.target, drafter) for drafter in drafters]
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(llm.generate, pair.prompts[:3], SamplingParams(COUNT)) for llm in llms
        ]
    for one in calls:
        assert [out.token_ids for out in one.result()] == pair.answers[:3]
    for drafter in drafters:
        drafter.save_pool()  # type: ignore[attr-defined]
    again = LLM(pair.target, create(spec, draft_model=pair.draft))
    assert again.generate([pair.prompts[0]], SamplingParams(COUNT))[0].token_ids == pair.answers[0]
