"""Test prompts with images: outputs equal those of `model.generate`."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paceline import LLM, DraftTree, MultimodalPrompt, SamplingParams, ScriptedDrafter, demo
from paceline.core.media import EncodedPrompt, Media
from paceline.core.request import Request
from paceline.errors import CapacityError, ConfigError
from paceline.integrations.transformers import Strategy
from paceline.model.forward_arguments import GENERATE_CACHE
from tests.support import multimodal, multimodal_processors
from tests.support.multimodal import CLASSES, NESTED, RECURRENT, expected, image, mark_of
from tests.support.multimodal_configs import IDS, IMAGE
from tests.support.serving import served

TEXT = "plain text, plain text"
# transformers' processor of GLM-4V passes tensors to numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def llm_of(kind: str, drafter: str = "prompt_lookup", **options: Any) -> LLM:
    given = {"batch_invariant": False, **options}
    return LLM(
        multimodal.model(kind), drafter, processor=multimodal_processors.processor(kind), **given
    )


def prompt(kind: str, seed: int, text: str = "hello hello what") -> MultimodalPrompt:
    return MultimodalPrompt(f"{mark_of(kind)} {text}", [image(seed)])


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


LLAVA = llm_of("llava")


def files(folder: Path) -> dict[str, Any]:
    """Return images that cannot be used, by name."""
    (folder / "text.png").write_text("no image")
    image(0).save(folder / "whole.png")
    data = (folder / "whole.png").read_bytes()
    (folder / "cut.png").write_bytes(data[: len(data) // 2])
    return {
        "text": folder / "text.png",
        "cut": folder / "cut.png",
        "missing": folder / "missing.png",
        "folder": folder,
        "bytes": b"no image",
        "empty": b"",
        "url": "https://example.org/cat.png",
        "file url": "file:///etc/passwd",
        "data url": "data:image/png,plain",
        "base64": "data:image/png;base64,%%%",
        "number": 5,
        "huge": Image.new("1", (9000, 9000)),
    }


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("text", "got data that are not an image"),
        ("cut", "cannot be read"),
        ("missing", "No such file"),
        ("folder", "Is a directory"),
        ("bytes", "not an image"),
        ("empty", "not an image"),
        ("url", "got a URL with https://, which is not fetched"),
        ("file url", "got a URL with file://"),
        ("data url", "expected data:image/png;base64"),
        ("base64", "is not base64"),
        ("number", "got a int"),
        ("huge", "at most 64,000,000"),
    ],
)
def test_unusable_images_are_refused(tmp_path: Path, source: str, words: str) -> None:
    given = files(tmp_path)[source]
    with pytest.raises(ConfigError, match=words) as error:
        LLAVA.generate([MultimodalPrompt("<image> what", [given])])
    assert str(error.value).startswith("prompt 0.images.0: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (MultimodalPrompt("what", [image(0)]), "1 image and 0 placeholders <image>"),
        (MultimodalPrompt("<image> what", [image(0)] * 2), "2 images and 1 placeholder <image>"),
        (MultimodalPrompt("what <image>", [image(0)]), "ends with an image"),
        (MultimodalPrompt("what", videos=[[image(0)]]), "1 video for LlavaForCond"),
        (MultimodalPrompt("what", audio=[[0.5] * 100]), "1 audio clip for LlavaForCond"),
        (MultimodalPrompt(5, [image(0)]), "got a int"),  # type: ignore[arg-type]
        (MultimodalPrompt("<image>", "a.png"), "got a str; expected a list"),
    ],
)
def test_mismatched_images_and_placeholders_are_refused(
    entry: MultimodalPrompt, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        LLAVA.generate([TEXT, entry])
    assert str(error.value).startswith("prompt 1")
    assert LLAVA.load.waiting == 0


def test_text_models_refuse_images() -> None:
    llm = LLM(demo.TARGET, "none", dtype="float32", batch_invariant=False)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM, which reads text only"):
        llm.generate([MultimodalPrompt("what", [image(0)])])
    message = {"role": "user", "content": [{"type": "image", "image": image(0)}]}
    with pytest.raises(ConfigError, match=r"messages.0.content.0: got an image"):
        llm.chat([message])


def test_prompt_logprobs_and_long_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match="prompt_logprobs: got 1 for prompt 0"):
        LLAVA.generate([prompt("llava", 0)], SamplingParams(2, prompt_logprobs=1))
    with pytest.raises(ConfigError, match="no processor"):
        LLM(multimodal.model("llava"), "none", batch_invariant=False).generate([prompt("llava", 0)])
    short = LLM(
        multimodal.model("llava"),
        "none",
        processor=multimodal_processors.processor("llava"),
        batch_invariant=False,
        max_length=8,
    )
    with pytest.raises(CapacityError, match="prompt 0: got"):
        short.generate([prompt("llava", 0)])


def test_rejected_tensors_end_only_their_request() -> None:
    """One request has two images without their tensors; the other request succeeds."""
    encoded = llm_of("llava")._media.encode_prompt(prompt("llava", 0), "prompt")
    assert isinstance(encoded, EncodedPrompt)
    broken = {"pixel_values": torch.zeros(3, 3, 28, 28)}
    bad = EncodedPrompt(list(encoded), Media.of(encoded, broken, encoded.media.end))
    handles = LLAVA._engine.submit(LLAVA._inputs.requests([bad, TEXT], SamplingParams(5)))
    with pytest.raises(ConfigError, match="got tensors that it rejects"):
        LLAVA._engine.finish(handles)
    LLAVA._engine.finish(handles[1:])
    assert handles[1].request.output_ids == expected("llava", TEXT, [], 5)
    LLAVA._engine.withdraw(handles)


def test_the_server_takes_data_urls_only() -> None:
    stream = io.BytesIO()
    image(0).save(stream, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
    text = {"type": "text", "text": " what is it"}

    def body(part: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": [part, text]}]
        return {"messages": messages, "max_tokens": 6, "temperature": 0}

    with served(LLAVA, ()) as server:
        answer = server.post(
            "/v1/chat/completions", body({"type": "image_url", "image_url": {"url": url}})
        )
        refused = [
            server.post("/v1/chat/completions", body(part))
            for part in (
                {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
                {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
                {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
                {"type": "image", "image": "/etc/passwd"},
                {"type": "image", "path": "/etc/passwd"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,bm8="}},
                {"type": "image_url", "image_url": 5},
                {"type": "video", "video": ["/etc/passwd"]},
                {"type": "input_audio", "input_audio": {}},
            )
        ]
        data = url.partition(",")[2]
        source = {"type": "base64", "media_type": "image/png", "data": data}
        block = {"type": "image", "source": source}
        message = server.post("/v1/messages", body(block)).json()
        part = {"type": "input_image", "image_url": url}
        fields = {"max_output_tokens": 6, "temperature": 0}
        question = {"type": "input_text", "text": text["text"]}
        response = server.post(
            "/v1/responses", {**fields, "input": [{"role": "user", "content": [part, question]}]}
        ).json()
        unusable = [
            server.post("/v1/messages", body({"type": "image", "source": bad}))
            for bad in ({"type": "url", "url": url}, {**source, "data": "bm8="}, None)
        ]
        unusable += [
            server.post("/v1/responses", {**fields, "input": [{"role": "user", "content": [bad]}]})
            for bad in ({"type": "input_image", "file_id": "f"}, {**part, "image_url": "/etc"})
        ]
        assert [each.status_code for each in unusable] == [400] * 5
        assert server.open_work() == 0
    reference = LLAVA.chat(
        [{"role": "user", "content": [{"type": "image", "image": image(0)}, text]}],
        SamplingParams(6),
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == reference.text
    assert answer.json()["usage"]["prompt_tokens"] > 12
    assert message["content"] == [{"type": "text", "text": reference.text}]
    assert response["output"][0]["content"][0]["text"] == reference.text
    for response in refused:
        message = response.json()["error"]["message"]
        assert (response.status_code, message.count("\n")) == (400, 0), message
        assert message.startswith("messages.0.content.0"), message
        assert "root" not in message


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
