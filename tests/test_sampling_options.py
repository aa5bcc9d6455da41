"""Test options of single requests: exact under every drafter, or refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

from paceline import LLM, Completion, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.drafters import create
from paceline.engine.engine import Engine
from paceline.errors import ConfigError
from paceline.sampling import logit_adjustments, score_indices
from tests.support.drafters import ScriptedTree
from tests.support.shared import COUNT, MOST_SPECS, SAME_SEED, Pair

LENGTH = 24


class ForbidsRecentTokens(LogitsProcessor):  # type: ignore[misc]
    """Processor that forbids recent tokens and requires one call per token."""

    def __init__(self) -> None:
        self.width: int | None = None
        self.seen: tuple[int, ...] = ()

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        assert ids.shape[0] == scores.shape[0] == 1
        assert self.width is None or ids.shape[1] == self.width + 1
        self.width, self.seen = ids.shape[1], (*self.seen, int(ids[0, -1]))
        scores[:, list(self.seen[-2:])] = -math.inf
        return scores


def favours_even(ids: Tensor, scores: Tensor) -> Tensor:
    """A plain function as a processor, which depends on the length of the text."""
    even = torch.arange(scores.shape[-1]) % 2 == ids.shape[1] % 2
    return scores + 1.5 * even


def requests(pair: Pair, temperature: float) -> list[SamplingParams]:
    """Return parameters with several options for each prompt; every fourth has none."""
    common: dict[str, Any] = {"max_new_tokens": LENGTH, "temperature": temperature, "seed": 3}
    every = []
    for row, answer in enumerate(pair.answers):
        words = [answer[3:5], answer[:1], [*answer[1:3], answer[7]]]
        kinds: list[dict[str, Any]] = [
            {"bad_words": words, "logit_bias": {answer[1]: -3.0, answer[2]: 1.5}, "logprobs": 3},
            {
                "presence_penalty": 0.7,
                "frequency_penalty": 0.4,
                "min_tokens": 9,
                "stop_token_ids": answer[4:12],
            },
            {
                "logits_processors": [ForbidsRecentTokens(), favours_even],
                "frequency_penalty": 0.3,
                "logprobs": 0,
            },
            {},
        ]
        every.append(SamplingParams(**common, **kinds[row % 4]))
    return every


def same(mine: Sequence[Completion], plain: Sequence[Completion]) -> None:
    for one, other in zip(mine, plain, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        assert (one.logprobs is None) == (other.logprobs is None)
        for ours, theirs in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert list(ours) == list(theirs)
            assert list(ours.values()) == pytest.approx(list(theirs.values()), abs=1e-4)


@pytest.fixture(scope="module")
def plain(pair: Pair) -> dict[float, list[Completion]]:
    llm = pair.engine("none")
    return {
        temperature: llm.generate(pair.prompts, requests(pair, temperature))
        for temperature in (0.0, 0.9)
    }


@pytest.mark.parametrize("spec", [spec for spec in MOST_SPECS if spec != "none"])
def test_all_options_are_exact_under_every_drafter(
    pair: Pair, plain: dict[float, list[Completion]], spec: str
) -> None:
    """Mix options in a batch; also sample, if drafts do not change the text."""
    llm, accepted = pair.engine(spec, max_batch=6), 0
    for temperature in (0.0, 0.9) if spec in SAME_SEED else (0.0,):
        outs = llm.generate(pair.prompts, requests(pair, temperature))
        same(outs, plain[temperature])
        accepted += sum(out.stats.accepted_tokens for out in outs)
    # With a budget, measured times decide whether drafts are verified.
    assert accepted > 0 or "budget=true" in spec
    assert llm.model.open_sequences == 0


def test_the_options_change_outputs(pair: Pair, plain: dict[float, list[Completion]]) -> None:
    """The options change outputs, so the equalities above mean something."""
    params = requests(pair, 0.0)
    for row, (out, one, answer) in enumerate(zip(plain[0.0], params, pair.answers, strict=True)):
        assert (out.token_ids == answer[: len(out.token_ids)]) == (row % 4 == 3)
        assert out.finish_reason == (
            "stop" if out.token_ids[-1] in one.stop_token_ids else "length"
        )
        assert len(out.token_ids) > one.min_tokens or not one.min_tokens
        for word in one.bad_words:
            assert not any(tuple(out.token_ids[i : i + len(word)]) == word for i in range(LENGTH))
    ended = [out for out in plain[0.0] if out.finish_reason == "stop"]
    assert ended
    assert all(len(out.token_ids) < LENGTH for out in ended)


def test_options_hold_at_every_node_of_a_tree(
    pair: Pair, plain: dict[float, list[Completion]]
) -> None:
    """The scripted drafter hides correct tokens among wrong siblings.

    Whole paths are accepted, also on side branches.
    """
    params = requests(pair, 0.0)
    known = {
        tuple(prompt): out.token_ids for prompt, out in zip(pair.prompts, plain[0.0], strict=True)
    }
    drafter = ScriptedTree(known, 256)
    outs = LLM(pair.target, drafter).generate(pair.prompts, params)
    same(outs, plain[0.0])
    assert drafter.side_branches > 5
    assert sum(out.stats.tokens_per_forward for out in outs) > 2 * len(outs)


FAULTS: dict[str, Any] = {
    "_on_path": lambda right: lambda tree, vocab: right(EMPTY_TREE, vocab),
    "_ends_with": lambda right: lambda output, tree, node, tokens: right(output, tree, -1, tokens),
    "node_depths": lambda right: lambda parents: np.zeros(len(parents), int),
}


@pytest.mark.parametrize("name", FAULTS)
def test_ignoring_the_path_of_a_node_is_detected(
    pair: Pair, plain: dict[float, list[Completion]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above fail if penalties or bad words ignore the path of a node."""
    known = {
        tuple(prompt): out.token_ids for prompt, out in zip(pair.prompts, plain[0.0], strict=True)
    }
    monkeypatch.setattr(score_indices, name, FAULTS[name](getattr(score_indices, name)))
    with pytest.raises((AssertionError, ConfigError)):
        same(
            LLM(pair.target, ScriptedTree(known, 256)).generate(pair.prompts, requests(pair, 0.0)),
            plain[0.0],
        )


def test_calling_a_processor_for_every_node_is_detected(pair: Pair) -> None:
    processor = ForbidsRecentTokens()
    scores = torch.zeros(1, 256)
    processor(torch.tensor([[1, 2]]), scores)
    with pytest.raises(AssertionError):
        processor(torch.tensor([[1, 2]]), scores)


@pytest.mark.parametrize(
    "spec", ["none", "prompt_lookup:budget=false", "draft_model:max_draft_tokens=3"]
)
def test_a_processor_without_effect_keeps_the_outputs(pair: Pair, spec: str) -> None:
    """Sampling token by token, for a processor, equals sampling a whole tree."""
    llm = pair.engine(spec)
    for temperature in (0.0, 0.8):
        params = [
            SamplingParams(12, temperature, 20, 0.9, seed=4, logits_processors=one)
            for one in ((), [lambda ids, scores: scores])
        ]
        ours, plain = (llm.generate(pair.prompts[:4], one) for one in params)
        assert [out.token_ids for out in ours] == [out.token_ids for out in plain]


def test_logits_without_options_are_not_copied() -> None:
    logits = torch.randn(1, 1, 12)
    assert (
        logit_adjustments.adjust_scores(logits, [Request([1], SamplingParams())], [EMPTY_TREE])
        is logits
    )


@pytest.mark.parametrize("greedy", [True, False])
def test_options_hold_with_draft_probabilities(pair: Pair, greedy: bool) -> None:
    """Options hold for sampled drafts, and processors are called in order."""
    llm = pair.engine("draft_model")
    params = [
        SamplingParams(
            LENGTH,
            temperature=0.0 if greedy else 0.8,
            seed=seed,
            bad_words=[answer[:1], answer[1:3]],
            presence_penalty=0.3,
            logits_processors=[ForbidsRecentTokens()] if seed % 2 else (),
            logprobs=1,
            stop_token_ids=answer[8:10],
            min_tokens=5,
        )
        for seed, answer in enumerate(pair.answers)
    ]
    outs = llm.generate(pair.prompts, params)
    assert sum(out.stats.accepted_tokens for out in outs) > 10
    for out, answer in zip(outs, pair.answers, strict=True):
        assert answer[0] not in out.token_ids
        assert len(out.logprobs or ()) == len(out.token_ids) >= 5
        assert not set(out.token_ids[:-1]) & set(answer[8:10])


def test_several_answers_per_prompt(pair: Pair, tokenizer: Any) -> None:
    """Several outputs of one call equal those of seed, seed + 1, ..."""
    llm = pair.engine("prompt_lookup", tokenizer=tokenizer)
    params = [
        SamplingParams(9, temperature=1.0, seed=5, n=3),
        SamplingParams(9),
        SamplingParams(9, 0.7, n=2),
    ]
    outs = llm.generate(pair.prompts[:3], params)
    assert [len(out.outputs) for out in outs] == [3, 1, 2]
    for number, other in enumerate(outs[0].outputs):
        (alone,) = llm.generate(
            pair.prompts[:1], SamplingParams(9, temperature=1.0, seed=5 + number)
        )
        assert (other.token_ids, other.text) == (alone.token_ids, alone.text)
    assert len({tuple(other.token_ids) for other in outs[0].outputs}) == 3
    with pytest.raises(
        ConfigError,
        match=r"n: got 2; expected 1 with temperature 0, where all answers are the same\.",
    ):
        SamplingParams(n=2)
    with pytest.raises(ConfigError, match="n: got 2 for a stream; expected 1"):
        llm.stream(pair.prompts[0], params[2])


def test_bad_words_may_be_texts(pair: Pair, tokenizer: Any) -> None:
    llm = pair.engine("prompt_lookup", tokenizer=tokenizer)
    free = llm.generate(pair.prompts, SamplingParams(COUNT))
    word = tokenizer.decode(free[0].token_ids[3:5]).strip()
    spelled = tuple(tokenizer(word, add_special_tokens=False)["input_ids"])
    (out,) = llm.generate(
        pair.prompts[:1], SamplingParams(COUNT, bad_words=[word, free[0].token_ids[:1]])
    )
    (same_ids,) = llm.generate(
        pair.prompts[:1], SamplingParams(COUNT, bad_words=[spelled, free[0].token_ids[:1]])
    )
    assert not any(tuple(out.token_ids[i : i + len(spelled)]) == spelled for i in range(COUNT))
    assert free[0].token_ids[0] not in out.token_ids
    assert len(same_ids.token_ids) == COUNT
    with pytest.raises(
        ConfigError, match="bad_words: got words and no tokenizer; expected both, or token ids"
    ):
        LLM(pair.target, "none").generate([[1]], SamplingParams(bad_words=["no"]))


def fails_at_some_lengths(ids: Tensor, scores: Tensor) -> Tensor:
    if ids.shape[1] % 8 == 3:
        raise ValueError("no\nmore")
    return scores


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"logits_processors": [fails_at_some_lengths]},
            r"got ValueError from 'fails_at_some_lengths' \[no more\]; expected scores",
        ),
        (
            {"logits_processors": [lambda ids, scores: scores[0]]},
            r"got \(256,\) from '<lambda>'; expected .* \(1, 256\)",
        ),
        ({"logits_processors": [lambda ids, scores: None]}, "got NoneType from '<lambda>'"),
        (
            {"logits_processors": [lambda ids, scores: scores - math.inf]},
            "forbid every next token",
        ),
        (
            {"logits_processors": [lambda ids, scores: scores * math.nan]},
            "got scores that are not numbers",
        ),
        ({"bad_words": [[token] for token in range(256)]}, "forbid every next token"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_failing_request_ends_alone(
    pair: Pair, options: dict[str, Any], words: str, temperature: float
) -> None:
    """Other requests in the batch still succeed."""
    engine = Engine(pair.target, create("prompt_lookup"))
    params = [SamplingParams(COUNT, temperature, **options), SamplingParams(COUNT)]
    requests = [Request(pair.prompts[row % 2], one) for row, one in enumerate([*params, params[0]])]
    handles = engine.submit(requests)
    while engine.unfinished:
        engine.step()
    assert [type(handle.error) for handle in handles] == [ConfigError, type(None), ConfigError]
    assert handles[1].request.output_ids == pair.answers[1]
    assert engine.model.open_sequences == 0
    with pytest.raises(ConfigError, match=words) as caught:
        LLM(pair.target, "draft_model", pair.draft).generate(pair.prompts[:2], params)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"stop_token_ids": [-1]},
            "stop_token_ids: got .*; expected token ids of at least 0, or None",
        ),
        ({"stop_token_ids": "ab"}, "stop_token_ids: got 'ab'; expected"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids: got"),
        ({"min_tokens": -1}, "min_tokens: got -1; expected an integer from 0 to max_new_tokens"),
        ({"min_tokens": 129}, "min_tokens: got 129"),
        ({"logit_bias": {1: 101}}, "logit_bias: got .* from -100 to 100"),
        ({"logit_bias": {1: math.nan}}, "logit_bias: got"),
        ({"logit_bias": {"a": 1}}, "logit_bias: got"),
        ({"logit_bias": [(1, 2.0)]}, "logit_bias: got"),
        (
            {"bad_words": "word"},
            "bad_words: got 'word'; expected a list of words or of lists of token ids",
        ),
        ({"bad_words": [""]}, "bad_words: got"),
        ({"bad_words": [[]]}, "bad_words: got"),
        ({"bad_words": [3]}, "bad_words: got"),
        ({"presence_penalty": 2.1}, "presence_penalty: got 2.1; expected a number from -2 to 2"),
        ({"frequency_penalty": math.inf}, "frequency_penalty: got inf"),
        ({"logits_processors": [3]}, "logits_processors: got .*; expected callables"),
        ({"logits_processors": 3}, "logits_processors: got 3; expected callables"),
        ({"logprobs": -1}, "logprobs: got -1; expected an integer of at least 0, or None"),
        ({"logprobs": True}, "logprobs: got True"),
        ({"n": 0}, "n: got 0; expected an integer of at least 1"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SamplingParams(**options)


def test_accepted_forms_of_values(pair: Pair) -> None:
    clumsy: dict[str, Any] = {
        "stop_token_ids": torch.tensor([4, 5]),
        "bad_words": [np.array([1, 2]), (3,)],
        "logit_bias": {np.int64(3): 1},
        "logits_processors": favours_even,
    }
    params = SamplingParams(**clumsy)
    assert (params.stop_token_ids, params.bad_words, params.logit_bias) == (
        (4, 5),
        ((1, 2), (3,)),
        {3: 1.0},
    )
    assert params.logits_processors == (favours_even,)
    careless: dict[str, Any] = {
        "stop_token_ids": 7,
        "bad_words": None,
        "logit_bias": {},
        "logits_processors": None,
    }
    assert SamplingParams(**careless) == SamplingParams(stop_token_ids=[7])
    assert isinstance(hash(params), int)
    for name, value in {
        "stop_token_ids": [256],
        "logit_bias": {300: 1.0},
        "bad_words": [[1, 256]],
    }.items():
        with pytest.raises(
            ConfigError,
            match=rf"{name}: got token id {300 if name == 'logit_bias' else 256}; expected 0 to"
            r" 255",
        ):
            LLM(pair.target, "none").generate([[1]], SamplingParams(**{name: value}))  # type: ignore[arg-type]
