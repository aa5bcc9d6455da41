"""Test the Python API with bad arguments.

Invalid ones raise a typed error in one line, and unusual valid ones give the output of plain
decoding.
"""

# These tests pass arguments of wrong types.
# mypy: disable-error-code="arg-type, list-item, dict-item, misc"
from __future__ import annotations

import array
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams, datastore
from paceline.bench import BenchConfig, run_bench
from paceline.drafters import create
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import PacelineError
from paceline.integrations.transformers import Strategy, generate
from paceline.replay import replay
from paceline.replay.recorder import RecordingPrompt, RecordOptions, record_answers
from paceline.replay.traces import read_traces
from paceline.report.prompts import load_prompts
from paceline.training.acceptance_head.recording import read_recording
from paceline.training.acceptance_head.settings import RecordConfig, TrainConfig
from paceline.util.options import ModelOptions, PromptOptions, changed
from tests.hostile.test_parameters import check_refused
from tests.support.models import make
from tests.support.shared import Pair

pytestmark = pytest.mark.hostile


@dataclass(frozen=True)
class CaseContext:
    """Objects for the cases: an engine, its models, a tokenizer and folders."""

    llm: LLM
    pair: Pair
    tokenizer: Any
    valid_files: Path
    folder: Path

    @property
    def ids(self) -> list[int]:
        return self.pair.prompts[0]

    @property
    def target(self) -> Any:
        return self.pair.target

    def text(self) -> LLM:
        """Return an engine for the target with a tokenizer."""
        return LLM(self.target, "none", tokenizer=self.tokenizer)

    def decode(self, **options: Any) -> Any:
        """Run `model.generate` with a Strategy."""
        given = {
            "input_ids": torch.tensor([self.ids]),
            "max_new_tokens": 4,
            "pad_token_id": 0,
            "do_sample": False,
        }
        given |= {"custom_generate": Strategy("prompt_lookup")}
        return self.target.generate(**{**given, **options})

    def form(self, **options: Any) -> Any:
        """Run paceline's `generate` for transformers models."""
        return generate(
            self.target,
            **{"input_ids": torch.tensor([self.ids]), "max_new_tokens": 4, "do_sample": False}
            | options,
        )


@pytest.fixture
def here(pair: Pair, tokenizer: Any, valid_files: Path, tmp_path: Path) -> CaseContext:
    return CaseContext(pair.engine("prompt_lookup"), pair, tokenizer, valid_files, tmp_path)


P = SamplingParams
FOUR = P(4)
NAN, INF = math.nan, math.inf
Case = Callable[[CaseContext], Any]
PROMPTS: dict[str, tuple[Any, Any]] = {
    "nothing": (None, FOUR),
    "a number": (3, FOUR),
    "bytes": (b"abc", FOUR),
    "a bytearray": (bytearray(b"abc"), FOUR),
    "a mapping": ({"prompt": "x"}, FOUR),
    "a set": ({1, 2}, FOUR),
    "a generator": ((i for i in [[1]]), FOUR),
    "one list of ids": ([1, 2, 3], FOUR),
    "an empty text": ("", FOUR),
    "text without a tokenizer": ("hello", FOUR),
    "no ids": ([[]], FOUR),
    "a negative id": ([[1, -1]], FOUR),
    "an id too large": ([[256]], FOUR),
    "an id of 80 bits": ([[1 << 80]], FOUR),
    "fractions": ([[1.0, 2.0]], FOUR),
    "truths": ([[True, False]], FOUR),
    "nested": ([[[1, 2]]], FOUR),
    "mixed": ([[1, "a"]], FOUR),
    "bytes as ids": ([b"abc"], FOUR),
    "nothing in it": ([[None]], FOUR),
    "an array of fractions": (np.ones((1, 3)), FOUR),
    "an array of three axes": (np.ones((1, 2, 3), dtype=int), FOUR),
    "a scalar array": (np.array(3), FOUR),
    "a tensor of fractions": (torch.ones(1, 3), FOUR),
    "a scalar tensor": (torch.tensor(3), FOUR),
    "a tensor of truths": (torch.ones(1, 3, dtype=torch.bool), FOUR),
    "an empty tensor": (torch.zeros(1, 0, dtype=torch.long), FOUR),
    "too long": ([[1] * 100_000], FOUR),
    "one of two": ([[1, 2], []], FOUR),
    "a mapping for parameters": ([[1]], {"max_new_tokens": 4}),
    "parameters of a text": ([[1]], "greedy"),
    "a number for parameters": ([[1]], 4),
    "parameters for two": ([[1]], [FOUR, FOUR]),
    "no parameters for one": ([[1]], []),
    "nothing among parameters": ([[1]], [None]),
    "the class": ([[1]], P),
    "stop without a tokenizer": ([[1]], P(4, stop=("a",))),
    "an unknown drafter": ([[1]], P(4, speculation="hope")),
    "a drafter without its model": ([[1]], P(4, speculation="draft_model")),
    "a drafter's bad option": ([[1]], P(4, speculation="prompt_lookup:max_draft_tokens=0")),
    "a drafter's missing store": ([[1]], P(4, speculation="rest:datastore=/missing")),
}

REFUSED: dict[str, Case] = {
    "LLM of nothing": lambda h: LLM(None),
    "LLM of a number": lambda h: LLM(3),
    "LLM of bytes": lambda h: LLM(b"demo"),
    "LLM of a list": lambda h: LLM(["demo"]),
    "LLM of a layer": lambda h: LLM(torch.nn.Linear(2, 2)),
    "LLM of a tokenizer": lambda h: LLM(h.tokenizer),
    "LLM of an LLM": lambda h: LLM(h.llm),
    "LLM of a class": lambda h: LLM(type(h.target)),
    "LLM of a missing folder": lambda h: LLM(h.folder / "missing"),
    "LLM of an empty folder": lambda h: LLM(h.folder),
    "LLM of an encoder": lambda h: LLM(make("t5")),
    "LLM of a recurrent model": lambda h: LLM(make("recurrent_gemma")),
    "drafter nothing": lambda h: LLM(h.target, None),
    "drafter a number": lambda h: LLM(h.target, 3),
    "drafter a class": lambda h: LLM(h.target, type(create("none"))),
    "drafter empty": lambda h: LLM(h.target, ""),
    "drafter spaces": lambda h: LLM(h.target, "  "),
    "drafter a list": lambda h: LLM(h.target, ["none"]),
    "draft model a number": lambda h: LLM(h.target, "draft_model", 3),
    "draft model another vocabulary": lambda h: LLM(h.target, "draft_model", make("llama")),
    "draft model an encoder": lambda h: LLM(h.target, "draft_model", make("t5")),
    "draft model none": lambda h: LLM(h.target, "draft_model"),
    "tokenizer a number": lambda h: LLM(h.target, "none", tokenizer=3),
    "tokenizer a missing folder": lambda h: LLM(h.target, "none", tokenizer="/missing"),
    "tokenizer a list": lambda h: LLM(h.target, "none", tokenizer=["a"]),
    "tokenizer a mapping": lambda h: LLM(h.target, "none", tokenizer={}),
    "dtype a number": lambda h: LLM("demo", "none", dtype=3),
    "dtype nothing": lambda h: LLM("demo", "none", dtype=None),
    "dtype int64": lambda h: LLM("demo", "none", dtype=torch.int64),
    "dtype float64": lambda h: LLM("demo", "none", dtype="float65"),
    "device a number": lambda h: LLM("demo", "none", device=0),
    "device nothing": lambda h: LLM("demo", "none", device=None),
    "device unknown": lambda h: LLM("demo", "none", device="tpu"),
    "device negative": lambda h: LLM("demo", "none", device="cuda:-1"),
    "max_length 1": lambda h: LLM(h.target, "none", max_length=1),
    "max_length text": lambda h: LLM(h.target, "none", max_length="9"),
    "max_length not a number": lambda h: LLM(h.target, "none", max_length=NAN),
    "max_batch 0": lambda h: LLM(h.target, "none", max_batch=0),
    "max_batch nothing": lambda h: LLM(h.target, "none", max_batch=None),
    "max_nodes negative": lambda h: LLM(h.target, "none", max_nodes=-1),
    "batch_invariant text": lambda h: LLM(h.target, "none", batch_invariant="perhaps"),
    "batch_invariant a number": lambda h: LLM(h.target, "none", batch_invariant=2),
    "batch_invariant nothing": lambda h: LLM(h.target, "none", batch_invariant=None),
    "parallel without torchrun": lambda h: LLM(h.target, "none", lookahead_parallel=True),
    "parallel text": lambda h: LLM(h.target, "none", lookahead_parallel="yes"),
    "change_drafter nothing": lambda h: h.llm.change_drafter(None),
    "change_drafter a name": lambda h: h.llm.change_drafter("pia"),
    "stream two": lambda h: list(h.llm.stream([[1, 2], [3]], FOUR)),
    "stream nothing": lambda h: list(h.llm.stream(None, FOUR)),
    "stream bytes": lambda h: list(h.llm.stream(b"x", FOUR)),
    "stream a mapping": lambda h: list(h.llm.stream([1], {"a": 1})),
    "chat a text": lambda h: h.text().chat("hi"),
    "chat nothing": lambda h: h.text().chat(None),
    "chat empty": lambda h: h.text().chat([]),
    "chat without template": lambda h: h.text().chat([{"role": "user", "content": "hi"}]),
    "chat a number": lambda h: LLM("demo", "none").chat([{"role": "user", "content": 3}]),
    "chat no content": lambda h: LLM("demo", "none").chat([{"role": "user"}]),
    "chat one message": lambda h: LLM("demo", "none").chat({"role": "user", "content": "hi"}),
    "create nothing": lambda h: create(None),
    "create a number": lambda h: create(3),
    "create a wrong keyword": lambda h: create("prompt_lookup", max_draft_token=3),
    "create a wrong type": lambda h: create("prompt_lookup", max_draft_tokens="three"),
    "create a fraction": lambda h: create("prompt_lookup", max_draft_tokens=2.5),
    "create a truth": lambda h: create("prompt_lookup", max_draft_tokens=True),
    "create nothing for a number": lambda h: create("prompt_lookup", max_draft_tokens=None),
    "create text for a truth": lambda h: create("prompt_lookup", budget="maybe"),
    "create twice": lambda h: create("prompt_lookup:max_draft_tokens=3", max_draft_tokens=3),
    "create draft_model of a number": lambda h: create("draft_model", draft_model=3),
    "build documents of text": lambda h: datastore.build(h.folder / "s", ["abc"], 256),
    "build ids too large": lambda h: datastore.build(h.folder / "s", [[300]], 256),
    "build negative ids": lambda h: datastore.build(h.folder / "s", [[-1]], 256),
    "build fractions": lambda h: datastore.build(h.folder / "s", [[1.5]], 256),
    "build numbers": lambda h: datastore.build(h.folder / "s", [1, 2], 256),
    "build nothing": lambda h: datastore.build(h.folder / "s", None, 256),
    "build no document": lambda h: datastore.build(h.folder / "s", [], 256),
    "build a vocabulary of 0": lambda h: datastore.build(h.folder / "s", [[1]], 0),
    "build a vocabulary of text": lambda h: datastore.build(h.folder / "s", [[1]], "256"),
    "build into a file": lambda h: datastore.build(h.valid_files / "documents.txt", [[1]], 256),
    "build no workers": lambda h: datastore.build(h.folder / "s", [[1]], 256, workers=-1),
    "add to nothing": lambda h: datastore.add(h.folder / "missing", [[1]]),
    "open nothing": lambda h: datastore.open(h.folder / "missing"),
    "open a file": lambda h: datastore.open(h.valid_files / "documents.txt"),
    "open None": lambda h: datastore.open(None),
    "info of nothing": lambda h: datastore.info(h.folder / "missing"),
    "verify of nothing": lambda h: datastore.verify(h.folder / "missing"),
    "append ids too large": lambda h: datastore.open(h.valid_files / "store").append([9999]),
    "a head of nothing": lambda h: AcceptanceHead.load(h.folder, h.pair.draft),
    "a head of another draft": lambda h: AcceptanceHead.load(h.valid_files / "head", h.pair.draft),
    "a recording of nothing": lambda h: read_recording(h.folder),
    "train options": lambda h: TrainConfig(depth=-1),
    "train a rate of nothing": lambda h: TrainConfig(lr=-1.0),
    "train shares": lambda h: TrainConfig(held_out=0.8),
    "record keep": lambda h: RecordConfig(keep=1.0),
    "record a penalty": lambda h: RecordConfig(sampling=P(repetition_penalty=2.0)),
    "record per request": lambda h: RecordConfig(sampling=P(speculation="none")),
    "replay of predictions": lambda h: replay(create("jacobi"), [([1], [2])]),
    "replay negative nodes": lambda h: replay(create("prompt_lookup"), [([1], [2])], -1),
    "replay batch 0": lambda h: replay(create("prompt_lookup"), [([1], [2])], batch_size=0),
    "replay an empty prompt": lambda h: replay(create("prompt_lookup"), [([], [2])]),
    "replay text": lambda h: replay(create("prompt_lookup"), [("ab", "cd")]),
    "replay a name": lambda h: replay("prompt_lookup", [([1], [2])]),
    "replay nothing": lambda h: replay(create("prompt_lookup"), None),
    "replay one list": lambda h: replay(create("prompt_lookup"), [[1, 2, 3]]),
    "replay negative ids": lambda h: replay(create("prompt_lookup"), [([-1], [-2])]),
    "replay fractions of nodes": lambda h: replay(create("prompt_lookup"), [([1], [2])], 1.5),
    "traces of nothing": lambda h: read_traces(h.folder / "missing"),
    "traces of a folder": lambda h: read_traces(h.folder),
    "traces of prompts": lambda h: read_traces(h.valid_files / "prompts.jsonl"),
    "answers to nothing": lambda h: record_answers(h.folder / "a", h.llm, [], FOUR),
    "answers in batches of 0": lambda h: record_answers(
        h.folder / "a", h.llm, [RecordingPrompt("a", "b", [1])], FOUR, RecordOptions(batch=0)
    ),
    "answers with 65 tops": lambda h: record_answers(
        h.folder / "a", h.llm, [RecordingPrompt("a", "b", [1])], FOUR, RecordOptions(top=65)
    ),
    "answers into a folder": lambda h: record_answers(
        h.folder, h.llm, [RecordingPrompt("a", "b", [1])], FOUR
    ),
    "prompts of nothing": lambda h: load_prompts([h.folder / "missing"]),
    "prompts of a folder": lambda h: load_prompts([h.folder]),
    "prompts by minus one": lambda h: load_prompts([], -1),
    "bench of an unknown drafter": lambda h: BenchConfig(drafters=("hope",)),
    "bench twice": lambda h: BenchConfig(drafters=("none", "none")),
    "bench of nothing": lambda h: BenchConfig(drafters=(), baselines=()),
    "bench a batch of 0": lambda h: BenchConfig(batch=0),
    "bench stops": lambda h: BenchConfig(sampling=P(stop="x")),
    "bench per request": lambda h: BenchConfig(sampling=P(max_nodes=3)),
    "bench a scale": lambda h: BenchConfig(cost_scale="wide"),
    "bench an option that is none": lambda h: changed(BenchConfig(), bach=3),
    "bench of a missing model": lambda h: run_bench(BenchConfig(ModelOptions("/missing"))),
    "bench of a missing file": lambda h: run_bench(
        BenchConfig(selection=PromptOptions(("/missing",)))
    ),
    "threads none": lambda h: ModelOptions(threads=0),
    "every none": lambda h: PromptOptions(every=0),
    "Strategy of nothing": lambda h: Strategy(None),
    "Strategy of a number": lambda h: Strategy(3),
    "Strategy unknown": lambda h: Strategy("hope"),
    "Strategy without its draft": lambda h: Strategy("draft_model"),
    "Strategy with a drafter and a draft": lambda h: Strategy(create("none"), h.pair.draft),
    "beams": lambda h: h.decode(num_beams=2),
    "no cache": lambda h: h.decode(use_cache=False),
    "embeddings": lambda h: h.decode(input_ids=None, inputs_embeds=torch.zeros(1, 3, 64)),
    "ids too large": lambda h: h.decode(input_ids=torch.tensor([[999]])),
    "negative ids": lambda h: h.decode(input_ids=torch.tensor([[-1]])),
    "too long for the context": lambda h: h.decode(max_new_tokens=100_000),
    "the full form of nothing": lambda h: generate(None, input_ids=torch.tensor([[1]])),
    "the full form, unknown drafter": lambda h: h.form(drafter="hope"),
    "the full form, stops without tokenizer": lambda h: h.form(stop_strings=["x"]),
}

# Unusual but valid arguments: the output with drafts equals that of plain decoding.
ALLOWED: dict[str, Callable[[CaseContext, LLM], Any]] = {
    "a tuple": lambda h, llm: llm.generate([tuple(h.ids)], FOUR),
    "a range": lambda h, llm: llm.generate([range(5, 9)], FOUR),
    "an array": lambda h, llm: llm.generate(np.array([h.ids]), FOUR),
    "an array of bytes": lambda h, llm: llm.generate([np.array(h.ids, dtype=np.uint8)], FOUR),
    "an array of the standard library": lambda h, llm: llm.generate(
        [array.array("i", h.ids)], FOUR
    ),
    "a tensor": lambda h, llm: llm.generate(torch.tensor([h.ids], dtype=torch.int32), FOUR),
    "a read-only, strided array": lambda h, llm: llm.generate([np.array(h.ids * 2)[::2]], FOUR),
    "no prompt": lambda h, llm: llm.generate([], FOUR),
    "the same prompt often": lambda h, llm: llm.generate([h.ids] * 20, FOUR),
    "no parameters": lambda h, llm: llm.generate([h.ids]),
    "one token": lambda h, llm: llm.generate([[1]], P(1)),
    "every special token": lambda h, llm: llm.generate([[0, 1, 2]], FOUR),
    "a seed of 80 bits": lambda h, llm: llm.generate([h.ids], P(6, temperature=1.0, seed=1 << 80)),
    "a negative seed": lambda h, llm: llm.generate([h.ids], P(6, temperature=1.0, seed=-3)),
    "top_k beyond the vocabulary": lambda h, llm: llm.generate(
        [h.ids], P(6, temperature=1.0, top_k=10**9)
    ),
    "hottest": lambda h, llm: llm.generate([h.ids], P(6, temperature=1e308)),
    "coldest": lambda h, llm: llm.generate([h.ids], P(6, temperature=5e-324)),
    "least top_p": lambda h, llm: llm.generate([h.ids], P(6, temperature=1.0, top_p=5e-324)),
    "min_p of 1": lambda h, llm: llm.generate([h.ids], P(6, temperature=1.0, min_p=1.0)),
    "a strong penalty": lambda h, llm: llm.generate([h.ids], P(6, repetition_penalty=1e300)),
    "a weak penalty": lambda h, llm: llm.generate([h.ids], P(6, repetition_penalty=1e-300)),
    "longer than the context": lambda h, llm: llm.generate([h.ids], P(10**9, ignore_eos=True)),
    "numbers of numpy": lambda h, llm: llm.generate([[np.int64(token) for token in h.ids]], FOUR),
    "another drafter each": lambda h, llm: llm.generate(
        [h.ids] * 3, [P(9, speculation=s) for s in ("pia", "none", "lookahead")]
    ),
    "no nodes": lambda h, llm: llm.generate([h.ids], P(9, max_nodes=0)),
    "nodes without end": lambda h, llm: llm.generate([h.ids], P(9, max_nodes=10**12)),
    "a stream closed early, then another": lambda h, llm: (
        next(iter(llm.stream(h.ids, FOUR))),
        llm.generate([h.ids], FOUR),
    )[1],
    "a stream never read": lambda h, llm: (llm.stream(h.ids, FOUR), llm.generate([h.ids], FOUR))[1],
    "streams in turn": lambda h, llm: _in_turn(llm, h),
    "after a refused call": lambda h, llm: _after_refused(llm, h),
    "threads": lambda h, llm: _in_threads(llm, h),
}


def _in_turn(llm: LLM, here: CaseContext) -> list[Any]:
    streams = [llm.stream(prompt, P(6)) for prompt in here.pair.prompts[:4]]
    ended: list[Any] = []
    while streams:
        for stream in list(streams):
            chunk = next(stream, None)
            if chunk is None:
                streams.remove(stream)
            elif chunk.completion is not None:
                ended.append(chunk.completion)
    return sorted(ended, key=lambda one: one.token_ids)


def _after_refused(llm: LLM, here: CaseContext) -> Any:
    with pytest.raises(PacelineError):
        llm.generate([here.ids, [999]], FOUR)
    return llm.generate([here.ids], FOUR)


def _in_threads(llm: LLM, here: CaseContext) -> list[Any]:
    found: dict[int, Any] = {}

    def ask(index: int) -> None:
        found[index] = llm.generate([here.pair.prompts[index]], P(6))[0]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in range(6)]


@pytest.mark.parametrize("name", PROMPTS)
def test_bad_prompts_are_refused(name: str, here: CaseContext) -> None:
    check_refused(lambda: here.llm.generate(*PROMPTS[name]))
    assert here.llm.model.open_sequences == 0
    assert here.llm.generate([here.ids], FOUR)[0].token_ids == here.pair.answers[0][:4]


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str, here: CaseContext) -> None:
    check_refused(lambda: REFUSED[name](here))
    assert not list(here.folder.glob("**/*.json*"))
    assert here.llm.generate([here.ids], FOUR)[0].token_ids == here.pair.answers[0][:4]


@pytest.mark.parametrize("name", ALLOWED)
def test_unusual_arguments_are_accepted(name: str, here: CaseContext) -> None:
    plain = here.pair.engine("none", max_length=64)
    for drafter in ("prompt_lookup", "lookahead:budget=false"):
        drafted = here.pair.engine(drafter, max_length=64)
        assert [one.token_ids for one in ALLOWED[name](here, drafted)] == [
            one.token_ids for one in ALLOWED[name](here, plain)
        ]
        assert drafted.model.open_sequences == 0
