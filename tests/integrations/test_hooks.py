"""Test processors, criteria and streamers of transformers."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
)
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    TextIteratorStreamer,
)

from paceline.errors import ConfigError
from paceline.integrations.transformers import Strategy, generate
from tests.integrations.common import (
    DRAFTERS,
    ENDS,
    GREEDY,
    SAMPLED,
    Recorder,
    with_and_without,
)


class RecordingProcessor(LogitsProcessor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert scores.dtype == torch.float32
        self.prefixes += input_ids.tolist()
        return scores


class RecordingCriterion(StoppingCriteria):  # type: ignore[misc]
    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.prefixes += input_ids.tolist()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def test_processors_and_criteria_get_every_prefix_once(
    target: Any, strategies: dict[str, Strategy], one: Any, three: Any
) -> None:
    for inputs in (one, three):
        seen = []
        for strategy in (None, strategies[DRAFTERS[2]]):
            processor, criterion = RecordingProcessor(), RecordingCriterion()
            target.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=12,
                eos_token_id=2,
                pad_token_id=0,
                custom_generate=strategy,
                logits_processor=LogitsProcessorList([processor]),
                stopping_criteria=StoppingCriteriaList([criterion]),
            )
            seen.append((processor.prefixes, criterion.prefixes))
        for theirs, ours in zip(*seen, strict=True):
            assert sorted(theirs) == sorted(ours)
            assert len(inputs["input_ids"]) > 1 or theirs == ours


def test_processors_that_depend_on_the_batch(
    target: Any, strategies: dict[str, Strategy], three: Any
) -> None:
    strategy = strategies[DRAFTERS[1]]
    keys = {"keys": [654, 400, 836, 123, 340], "ngram_len": 4, "sampling_table_size": 4096}
    for options in (
        {
            "prefix_allowed_tokens_fn": lambda batch_id, ids: list(
                range(batch_id * 80, batch_id * 80 + 80)
            )
        },
        {"encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.3, **GREEDY},
        {
            "watermarking_config": SynthIDTextWatermarkingConfig(**keys),
            "do_sample": True,
            "top_k": 30,
        },
    ):
        expected, found = with_and_without(target, strategy, three, **options)
        assert torch.equal(found, expected)


def test_guidance_with_one_prompt_equals_generate(
    target: Any, strategies: dict[str, Strategy], one: Any
) -> None:
    expected, found = with_and_without(
        target, strategies[DRAFTERS[2]], one, guidance_scale=1.5, **SAMPLED
    )
    assert torch.equal(found, expected)


def test_the_time_limit_equals_generate(
    target: Any, strategies: dict[str, Strategy], three: Any
) -> None:
    for strategy in strategies.values():
        expected, found = with_and_without(target, strategy, three, max_time=1e-9, eos_token_id=2)
        assert torch.equal(found, expected)
        assert found.shape[1] == three["input_ids"].shape[1] + 1


def test_no_token_follows_an_end_token(target: Any, one: Any, draft: Any) -> None:
    answer = target.generate(**one, do_sample=False, max_new_tokens=20, eos_token_id=None)[
        0, one["input_ids"].shape[1] :
    ]
    # Every draft token is correct, so all end tokens are within accepted drafts.
    strategy = Strategy("draft_model:max_draft_tokens=8", draft_model=target)
    for index in (0, 3, 11):
        ends = [int(answer[index]), 254, 255]
        expected, found = with_and_without(target, strategy, one, eos_token_id=ends, **GREEDY)
        assert torch.equal(found, expected)
    for length in range(1, 14):
        expected, found = with_and_without(target, strategy, one, max_new_tokens=length, **GREEDY)
        assert torch.equal(found, expected)


def test_stop_strings_wherever_they_are_set(target: Any, text: Any, three: Any) -> None:
    width = three["input_ids"].shape[1]
    plain = target.generate(**three, do_sample=False, max_new_tokens=24, pad_token_id=0)
    stops = [
        text.decode(row[width + at : width + at + 2])
        for row, at in zip(plain, (5, 12), strict=False)
    ]
    common = {
        **three,
        "do_sample": False,
        "max_new_tokens": 24,
        "pad_token_id": 0,
        "tokenizer": text,
    }
    expected = target.generate(**common, stop_strings=stops)
    assert not torch.equal(expected, plain)
    strategy = Strategy("draft_model:max_draft_tokens=6", draft_model=target)
    assert torch.equal(generate(target, **common, stop_strings=stops, drafter=strategy), expected)
    assert {row.new_tokens for row in strategy.stats} != {24}
    assert torch.equal(
        target.generate(**common, stop_strings=stops, custom_generate=strategy), expected
    )
    assert {row.new_tokens for row in strategy.stats} != {24}

    config = GenerationConfig(
        do_sample=False, max_new_tokens=24, pad_token_id=0, eos_token_id=2, stop_strings=stops
    )
    before = copy.deepcopy(config.to_dict())
    found = generate(target, **three, generation_config=config, tokenizer=text, drafter=strategy)
    assert torch.equal(found, expected)
    assert config.to_dict() == before

    model = copy.copy(target)
    model.generation_config = copy.deepcopy(target.generation_config)
    model.generation_config.stop_strings = stops
    assert torch.equal(generate(model, **common, drafter="prompt_lookup"), expected)
    assert model.generation_config.stop_strings == stops
    with pytest.raises(ConfigError, match="tokenizer"):
        generate(model, **three, drafter="prompt_lookup")
    with pytest.raises(
        ValueError, match="one or more stop strings"
    ):  # transformers raises this before it calls the Strategy
        model.generate(**common, custom_generate=strategy)


@pytest.mark.parametrize("spec", DRAFTERS)
def test_a_streamer_gets_the_same_values(
    target: Any, draft: Any, one: Any, three: Any, spec: str
) -> None:
    for inputs in (one, three):
        ours, theirs = Recorder(), Recorder()
        options = {**GREEDY, "max_new_tokens": 24, "eos_token_id": ENDS, "pad_token_id": 0}
        target.generate(**inputs, **options, streamer=theirs)
        generate(target, **inputs, **options, streamer=ours, drafter=spec, draft_model=draft)
        assert len(ours.values) == len(theirs.values)
        assert all(torch.equal(*pair) for pair in zip(ours.values, theirs.values, strict=True))
        assert ours.ended == 1


def test_text_streams_end_after_an_error(target: Any, text: Any, one: Any) -> None:
    streamer = TextIteratorStreamer(text, timeout=5)
    found = generate(target, **one, streamer=streamer, drafter="prompt_lookup", max_new_tokens=8)
    assert "".join(streamer) == text.decode(found[0])
    broken: dict[str, Any]
    for broken in ({"use_cache": False}, {"assistant_model": target}, {"drafter": "nonsense"}):
        streamer = TextIteratorStreamer(text, timeout=5, skip_prompt=True)
        with pytest.raises(ConfigError):
            generate(
                target, **one, streamer=streamer, max_new_tokens=8, **{"drafter": "none", **broken}
            )
        assert "".join(streamer) == ""


@pytest.mark.parametrize("spec", DRAFTERS[:2])
def test_a_streamer_works_with_generate_of_the_model(
    target: Any, text: Any, one: Any, three: Any, spec: str
) -> None:
    strategy = Strategy(spec)
    for inputs in (one, three):
        ours, theirs = Recorder(), Recorder()
        options = {**GREEDY, "max_new_tokens": 12, "eos_token_id": ENDS, "pad_token_id": 0}
        target.generate(**inputs, **options, streamer=theirs)
        target.generate(**inputs, **options, streamer=ours, custom_generate=strategy)
        assert all(torch.equal(*pair) for pair in zip(ours.values, theirs.values, strict=True))
        assert ours.ended == 1
    streamer = TextIteratorStreamer(text, timeout=5)
    found = target.generate(**one, streamer=streamer, custom_generate=strategy, max_new_tokens=8)
    assert "".join(streamer) == text.decode(found[0])
    refused: dict[str, tuple[str, Any]] = {
        "assistant_model": ("assistant_model: a Strategy takes no assistant", target),
        "stop_strings": ("stop_strings: a tokenizer is needed.* Pass tokenizer=", ["ab"]),
    }
    for name, (words, value) in refused.items():
        streamer = TextIteratorStreamer(text, timeout=5, skip_prompt=True)
        with pytest.raises(ConfigError, match=words):
            target.generate(
                **one,
                streamer=streamer,
                custom_generate=strategy,
                max_new_tokens=8,
                **{name: value},
            )
        assert "".join(streamer) == ""


def test_stop_strings_end_a_text_stream(target: Any, text: Any, one: Any) -> None:
    """A stream that another thread reads equals the one without drafts."""
    width = one["input_ids"].shape[1]
    stop = text.decode(
        target.generate(**one, do_sample=False, max_new_tokens=24)[0, width + 5 : width + 7]
    )
    read: list[list[str]] = []
    for strategy in (None, Strategy("prompt_lookup")):
        streamer = TextIteratorStreamer(text, timeout=5, skip_prompt=True)
        options = {
            "do_sample": False,
            "max_new_tokens": 24,
            "stop_strings": stop,
            "tokenizer": text,
            "streamer": streamer,
        }
        writer = threading.Thread(
            target=target.generate, kwargs={**one, **options, "custom_generate": strategy}
        )
        writer.start()
        read.append(list(streamer))
        writer.join()
    assert "".join(read[0]) == "".join(read[1])
    assert "".join(read[1]).endswith(stop)


@pytest.mark.parametrize("how", ["model.compile", "model.forward", "torch.compile"])
def test_compiled_models_stay_compiled(target: Any, one: Any, how: str) -> None:
    """The package runs models uncompiled, and keeps what the caller compiled."""
    model = copy.deepcopy(target)
    expected = model.generate(**one, max_new_tokens=8, do_sample=False)
    compiled = model
    if how == "model.compile":
        model.compile(backend="eager")
    elif how == "model.forward":
        model.forward = torch.compile(model.forward, backend="eager")
    else:
        compiled = torch.compile(model, backend="eager")
    mine = model._compiled_call_impl, vars(model).get("forward")
    found = compiled.generate(
        **one, max_new_tokens=8, do_sample=False, custom_generate=Strategy("prompt_lookup")
    )
    assert torch.equal(found, expected)
    assert (model._compiled_call_impl, vars(model).get("forward")) == mine
