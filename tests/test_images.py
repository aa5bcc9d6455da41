"""Test prompts with images: outputs equal those of `model.generate`."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline import LLM, DraftTree, MultimodalPrompt, SamplingParams, ScriptedDrafter
from paceline.core.request import Request
from paceline.integrations.transformers import Strategy
from paceline.model.forward_arguments import GENERATE_CACHE
from tests.support import multimodal, multimodal_processors
from tests.support.multimodal import (
    CLASSES,
    NESTED,
    RECURRENT,
    expected,
    image,
    llm_of,
    mark_of,
    prompt,
)
from tests.support.multimodal_configs import IDS, IMAGE

TEXT = "plain text, plain text"
# transformers' processor of GLM-4V passes tensors to numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def vision_forwards(kind: str) -> tuple[list[int], Any]:
    """Count the forward passes of the vision tower; the caller removes the hook."""
    counts: list[int] = []
    tower = next(
        module
        for name, module in multimodal.model(kind).named_modules()
        if name.split(".")[-1] in ("visual", "vision_tower", "vision_model")
    )
    return counts, tower.register_forward_hook(lambda *_: counts.append(1))


@pytest.mark.parametrize("kind", CLASSES)
def test_answers_equal_generate(kind: str) -> None:
    """Put two prompts with images and two text prompts in one batch."""
    prompts: list[Any] = [prompt(kind, 0), TEXT, prompt(kind, 1), TEXT + "!"]
    answers = llm_of(kind).generate(prompts, SamplingParams(20))
    references = [
        expected(kind, entry.text, list(entry.images), 20)
        if isinstance(entry, MultimodalPrompt)
        else expected(kind, entry, [], 20)
        for entry in prompts
    ]
    assert [answer.token_ids for answer in answers] == references
    assert references[0] != references[2], "the answers must depend on the images"


@pytest.mark.parametrize("kind", sorted(RECURRENT))
def test_recurrent_models_run_without_fixed_shapes(kind: str) -> None:
    llm = llm_of(kind, fixed_shapes=True)
    assert llm.model.takes_trees
    (answer,) = llm.generate([prompt(kind, 0)], SamplingParams(20))
    assert answer.token_ids == expected(kind, prompt(kind, 0).text, [image(0)], 20)


@pytest.mark.parametrize("kind", CLASSES)
def test_strategy_equals_generate(kind: str) -> None:
    """Compare a padded batch of two prompts with images, its logits and its cache."""
    processor, model = multimodal_processors.processor(kind), multimodal.model(kind)
    processor.tokenizer.padding_side = "left"
    texts = [f"hello {mark_of(kind)} what?", f"hi {mark_of(kind)} and more text with this"]
    images = [[image(0)], [image(1)]] if kind in NESTED else [image(0), image(1)]
    features = processor(text=texts, images=images, padding=True, return_tensors="pt")
    inputs = {name: value for name, value in features.items() if isinstance(value, torch.Tensor)}
    options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    plain = model.generate(**inputs, **options, output_logits=True)
    strategy = Strategy("prompt_lookup")
    ours = model.generate(**inputs, **options, output_logits=True, custom_generate=strategy)
    assert torch.equal(plain.sequences, ours.sequences)
    for first, second in zip(plain.logits, ours.logits, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    if kind in RECURRENT:
        assert GENERATE_CACHE not in ours
        return
    assert ours[GENERATE_CACHE].get_seq_length() == plain[GENERATE_CACHE].get_seq_length()


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "gemma3", "qwen3_5"])
def test_wrong_branches_and_placeholders_do_not_change_outputs(kind: str) -> None:
    entry = prompt(kind, 0)
    reference = expected(kind, entry.text, list(entry.images), 20)
    placeholder = IDS[IMAGE]

    def propose(requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Put the correct tokens on a side branch, among placeholders."""
        trees = []
        for request in requests:
            rest = reference[len(request.output_ids) :][:3]
            if len(rest) < 3 or request.remaining < 5:
                trees.append(DraftTree.chain([placeholder]))
                continue
            tokens = [placeholder, placeholder, rest[0], 77, rest[1], rest[2]]
            trees.append(DraftTree(tokens, [-1, 0, -1, 2, 2, 4]))
        return trees

    llm = LLM(
        multimodal.model(kind),
        ScriptedDrafter(propose),
        processor=multimodal_processors.processor(kind),
    )
    (answer,) = llm.generate([entry], SamplingParams(20))
    assert answer.token_ids == reference
    assert answer.stats.target_forwards < 12, "drafts on side branches must be accepted"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("llava", "qwen3_5") else pytest.mark.slow)
        for kind in CLASSES
    ],
)
def test_a_second_turn_runs_no_vision_forward(kind: str) -> None:
    llm = llm_of(kind, keep_prefixes=4)
    first = prompt(kind, 0)
    counts, hook = vision_forwards(kind)
    try:
        (answer,) = llm.generate([first], SamplingParams(8, ignore_eos=True))
        assert len(counts) == 1
        text = first.text + answer.text + " and a second question"
        second = MultimodalPrompt(text, [image(0)])
        (continued,) = llm.generate([second], SamplingParams(12))
        assert len(counts) == 1
        assert continued.stats.cached_tokens >= 16
        (other,) = llm.generate([MultimodalPrompt(text, [image(1)])], SamplingParams(12))
        assert len(counts) == 2, "another image of the same size shares nothing"
        llm.generate([first], SamplingParams(8))
        assert len(counts) == 2, "the other image must not displace the first"
    finally:
        hook.remove()
    assert continued.token_ids == expected(kind, text, [image(0)], 12)
    assert other.token_ids == expected(kind, text, [image(1)], 12)


def test_answers_to_one_prompt_share_its_images() -> None:
    counts, hook = vision_forwards("qwen3_vl")
    try:
        (answer,) = llm_of("qwen3_vl").generate(
            [prompt("qwen3_vl", 0, "a long question")], SamplingParams(6, n=3, temperature=1.0)
        )
    finally:
        hook.remove()
    assert len(answer.others) == 2
    assert len(counts) == 1


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_5"])
def test_preempted_prompts_keep_their_images(kind: str) -> None:
    llm = llm_of(kind, max_batch=1)
    counts, hook = vision_forwards(kind)
    try:
        stream = llm.stream(prompt(kind, 0), SamplingParams(40, priority=1))
        tokens = list(next(stream).token_ids)
        (urgent,) = llm.generate([prompt(kind, 1)], SamplingParams(20))
        assert llm.load.preemptions == 1
        tokens += [token for chunk in stream for token in chunk.token_ids]
    finally:
        hook.remove()
    assert len(counts) == 3
    assert tokens == expected(kind, prompt(kind, 0).text, [image(0)], 40)
    assert urgent.token_ids == expected(kind, prompt(kind, 1).text, [image(1)], 20)


def test_an_abandoned_stream_frees_its_slot() -> None:
    llm = llm_of("llava")
    stream = llm.stream(prompt("llava", 0), SamplingParams(30))
    next(stream)
    assert llm.load.running == 1
    stream.close()
    assert (llm.load.running, llm.model.open_sequences) == (0, 0)


def test_position_offsets_do_not_remain_in_the_model() -> None:
    """The position offset of one prompt must not reach another call."""
    model = multimodal.model("qwen2_5_vl")
    model.model.rope_deltas = None
    llm_of("qwen2_5_vl").generate([prompt("qwen2_5_vl", 0)], SamplingParams(4))
    assert model.model.rope_deltas is None


def test_conversations_with_images() -> None:
    kind = "qwen2_5_vl"
    llm = llm_of(kind)
    stream = io.BytesIO()
    image(0).save(stream, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
    text = {"type": "text", "text": " what is it"}
    answers = [
        llm.chat([{"role": "user", "content": [part, text]}], SamplingParams(12)).token_ids
        for part in (
            {"type": "image", "image": image(0)},
            {"type": "image", "image": stream.getvalue()},
            {"type": "image", "image": url},
            {"type": "image_url", "image_url": {"url": url}},
        )
    ]
    messages = [{"role": "user", "content": [{"type": "image"}, text]}]
    rendered = multimodal_processors.processor(kind).apply_chat_template(
        messages, add_generation_prompt=True
    )
    assert answers == [expected(kind, rendered, [image(0)], 12)] * 4


@pytest.mark.parametrize("kind", ["qwen2_5_vl", pytest.param("lfm2_vl", marks=pytest.mark.slow)])
def test_batch_invariance_holds_with_images(kind: str) -> None:
    """Drafts and other requests in the batch change no bit of the output."""
    model = copy.deepcopy(multimodal.model(kind)).to(torch.bfloat16)
    alone, batched = (
        LLM(model, spec, processor=multimodal_processors.processor(kind), batch_invariant=True)
        for spec in ("none", "prompt_lookup")
    )
    params = SamplingParams(16, logprobs=3)
    entry = prompt(kind, 0)
    (first,) = alone.generate([entry], params)
    last = batched.generate([prompt(kind, 1), TEXT, entry], params)[-1]
    assert (first.token_ids, first.logprobs) == (last.token_ids, last.logprobs)
