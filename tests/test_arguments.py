"""Test unusual arguments: clear ones are accepted, others are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, Drafter, DraftTree, SamplingParams
from paceline.cli.options import split_specs, with_store
from paceline.core.request import Request
from paceline.errors import ConfigError, DrafterError
from paceline.model.loading import load_model
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.util.config import parse_spec
from tests.conftest import DATA
from tests.support.shared import Pair

GOOD = [1, 5, 9]
FOUR = SamplingParams(4)


@pytest.mark.parametrize(
    "prompt", [b"abc", bytearray(b"abc"), memoryview(b"abc"), np.array([1.0, 2.0]), [np.True_]]
)
def test_prompts_that_are_not_token_ids_are_refused(pair: Pair, prompt: Any) -> None:
    llm = LLM(pair.target, "none")
    with pytest.raises(
        ConfigError, match=r"prompt 0: got .*; expected a text or a list of integer token ids"
    ):
        llm.generate([prompt], FOUR)
    with pytest.raises(ConfigError, match=r"prompts?: got|prompt 0: got"):
        llm.generate(prompt, FOUR)


def test_arrays_and_tensors_are_accepted_as_prompts(pair: Pair) -> None:
    llm = LLM(pair.target, "none")
    expected = llm.generate([GOOD], FOUR)[0].token_ids
    arrays: list[Any] = [
        [np.array(GOOD)],
        np.array([GOOD]),
        torch.tensor([GOOD]),
        [[np.int64(1), np.int32(5), 9]],
        [np.array(GOOD, "u1")],
    ]
    for prompts in arrays:
        (out,) = llm.generate(prompts, FOUR)
        assert out.token_ids == expected
        assert {type(token) for token in out.token_ids} == {int}
    assert next(llm.stream(np.array(GOOD), FOUR)).token_ids == expected[:1]


@pytest.mark.parametrize("params", [{}, {"max_new_tokens": 3}, 3, "greedy", [3], [{}]])
def test_params_of_other_types_are_refused(pair: Pair, params: Any) -> None:
    llm = LLM(pair.target, "none")
    with pytest.raises(ConfigError, match=r"params: got .*; expected SamplingParams"):
        llm.generate([GOOD], params)
    with pytest.raises(ConfigError, match=r"params: got .*; expected SamplingParams"):
        llm.stream(GOOD, params)


def test_stop_accepts_none_and_refuses_other_types() -> None:
    assert SamplingParams(stop=None).stop == ()  # type: ignore[arg-type]
    for value in (3, b"ab", {"a": 1}, [None], ["\ud800"]):
        with pytest.raises(ConfigError, match=r"stop: got .*; expected non-empty strings, or None"):
            SamplingParams(stop=value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ignore_eos: got 'no'; expected True or False"):
        SamplingParams(ignore_eos="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch": 1.5}, "max_batch: got 1.5; expected a whole number"),
        ({"max_batch": True}, "max_batch: got True"),
        ({"max_nodes": "9"}, "max_nodes: got '9'"),
        ({"max_length": 7.5}, "max_length: got 7.5"),
        ({"drafter": None}, "drafter: got None; .* Plain decoding is 'none'"),
        ({"drafter": Drafter}, "drafter: got <class"),
        ({"tokenizer": 3}, "tokenizer: got a int; expected a directory, a hub id or a tokenizer"),
    ],
)
def test_engine_options_of_other_types_are_refused(
    pair: Pair, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(pair.target, **{"drafter": "none", **options})


def test_chat_template_errors_are_reported(
    pair: Pair, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(pair.target, "none", tokenizer=tokenizer)
    for template in (
        "{{ raise_exception('roles must alternate') }}",
        "{% for %}",
        "{{ messages[7]['content'].strip() }}",
    ):
        monkeypatch.setattr(tokenizer, "chat_template", template)
        with pytest.raises(
            ConfigError, match="messages: the chat template rejects this conversation: "
        ):
            llm.chat([{"role": "user", "content": "hello"}], FOUR)


def test_half_surrogate_pairs_are_refused(pair: Pair, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"prompt 0: got 'a.*ud800b', with half a surrogate pair"):
        LLM(pair.target, "none", tokenizer=tokenizer).generate("a\ud800b", FOUR)


def test_tiny_temperatures_are_greedy(pair: Pair) -> None:
    """Also where float32 cannot represent the temperature or the scaled logits."""
    llm = pair.engine("prompt_lookup")
    for temperature in (1e-5, 1e-20, 1e-38, 1e-45, 5e-324):
        for truncated in ({}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}):
            params = SamplingParams(8, temperature=temperature, seed=4, **truncated)  # type: ignore[arg-type]
            assert [out.token_ids for out in llm.generate(pair.prompts[:3], params)] == [
                one[:8] for one in pair.answers[:3]
            ]
    for penalty in (1e-300, 1e300):
        for temperature in (0.0, 1e-300, 1.0, 1e300):
            (out,) = llm.generate(
                pair.prompts[:1],
                SamplingParams(6, temperature=temperature, repetition_penalty=penalty),
            )
            assert len(out.token_ids) == 6
            assert (penalty > 1) == (
                not set(out.token_ids[:3]) & set(pair.prompts[0])
            ) or temperature > 1


def test_drafter_specs_may_quote_values() -> None:
    spec = """sssd:datastore="/my, own/store",fusion=paper,calibration='a "b",c'"""
    assert parse_spec(spec) == (
        "sssd",
        {"datastore": "/my, own/store", "fusion": "paper", "calibration": 'a "b",c'},
    )
    assert parse_spec("x:a=don't,b=5\"") == ("x", {"a": "don't", "b": '5"'})
    with pytest.raises(ConfigError, match="expected a quote at its end"):
        parse_spec('sssd:datastore="/my, store')
    assert split_specs([f'{spec},pia none,sssd:datastore="/a pia, sssd"']) == [
        spec,
        "pia",
        "none",
        'sssd:datastore="/a pia, sssd"',
    ]
    assert parse_spec(with_store("sssd", "/a, b"))[1] == {"datastore": "/a, b"}


@pytest.mark.parametrize(
    "name",
    [
        "./missing",
        "/missing/x",
        "~/missing",
        "a/b/c",
        "spaces in it",
        "x.gguf",
        "",
        Path("missing"),
    ],
)
def test_missing_paths_are_not_taken_for_hub_ids(name: str | Path) -> None:
    for load in (load_model, partial(load_tokenizer, model="demo")):
        with pytest.raises(ConfigError, match=r"there is no such (folder|file)\. Check the path"):
            load(name)


def test_an_unreachable_hub_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("Name or service not known")

    for load in (load_model, partial(load_tokenizer, model="demo")):
        with pytest.raises(ConfigError, match="'MODEL': it is not a local path, and HF_HUB_OFFL"):
            load("MODEL")
    monkeypatch.setattr("paceline.model.sources.get_session", refuse)
    with pytest.raises(ConfigError, match=r"'MODEL': .* huggingface\.co is not reachable\. Check"):
        load_model("MODEL")


def test_a_damaged_tokenizer_is_reported(tmp_path: Path, pair: Pair) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / "tiny_target", folder)
    (folder / "tokenizer.json").write_text("{garbage")
    llm = LLM(folder, "none", dtype="float32")
    assert llm.generate([pair.prompts[0]], FOUR)[0].token_ids == pair.answers[0][:4]
    with pytest.raises(
        ConfigError,
        match=r"got text and no tokenizer.* The tokenizer in the model's folder cannot be read: ",
    ):
        llm.generate("hello", FOUR)
    with pytest.raises(ConfigError, match=r"cannot load a tokenizer from .*model"):
        LLM(pair.target, "none", tokenizer=folder)


class Faulty(Drafter):
    """Drafter that proposes what a function returns."""

    name = "faulty"

    def __init__(self, fault: Callable[[Sequence[Request]], Any]) -> None:
        self._fault = fault

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        result: list[DraftTree] = self._fault(requests)
        return result


def tree(token_ids: Any, parents: Any, **others: Any) -> Callable[[Sequence[Request]], Any]:
    return lambda requests: [DraftTree(token_ids, parents, **others)] * len(requests)


FAULTS: dict[str, tuple[Callable[[Sequence[Request]], Any], str]] = {
    "None": (lambda requests: None, "proposed 'None'"),
    "trees that are None": (
        lambda requests: [None] * len(requests),
        "proposed .*; expected a list of DraftTrees",
    ),
    "lists": (
        lambda requests: [[1, 2]] * len(requests),
        "proposed .*; expected a list of DraftTrees",
    ),
    "an array": (
        lambda requests: np.zeros(len(requests)),
        "ndarray.*; expected a list of DraftTrees",
    ),
    "a generator": (lambda requests: (DraftTree([], []) for _ in requests), "generator"),
    "arrays in a tree": (
        tree(np.array([3]), np.array([-1])),
        r"token_ids '\[3\]' \(ndarray\); .* Call tolist",
    ),
    "numbers of NumPy": (
        tree([np.int64(3)], [-1]),
        "token_ids .*; expected a list of Python integers",
    ),
    "fractions": (tree([3.0], [-1]), "token_ids"),
    "nothing in a tree": (tree(None, None), "token_ids 'None'"),
    "an array of confidence": (
        tree([3], [-1], confidence=np.array([0.5])),
        "confidence .*; expected a list, or None",
    ),
    "lists for distributions": (
        tree([3], [-1], probs=[[0.1] * 256]),
        r"probs .*; each must be a tensor \[256\]",
    ),
    "an added token": (
        lambda requests: [DraftTree([], [])] * len(requests[0].token_ids.__iadd__([3])[:1]),
        "got changed token_ids",
    ),
    "another token": (
        lambda requests: [requests[0].token_ids.__setitem__(0, 4), DraftTree([], [])][1:],
        "got changed token_ids",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_drafters_are_named(pair: Pair, fault: str) -> None:
    propose, words = FAULTS[fault]
    llm = LLM(pair.target, Faulty(propose))
    with pytest.raises(DrafterError, match=f"drafter 'faulty'.*{words}"):
        llm.generate([GOOD], FOUR)
    assert llm.model.open_sequences == 0


def test_a_drafter_that_changes_tokens_in_observe_is_named(pair: Pair) -> None:
    class Late(Faulty):
        def observe(self, outcomes: Any) -> None:
            outcomes[0].request.token_ids[0] ^= 1

    with pytest.raises(DrafterError, match="drafter 'faulty': got changed token_ids"):
        LLM(pair.target, Late(tree([], []))).generate([GOOD], FOUR)
