"""Test that unusable images, and prompts that do not match their images, are refused."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paceline import LLM, MultimodalPrompt, SamplingParams, demo
from paceline.core.media import EncodedPrompt, Media
from paceline.errors import CapacityError, ConfigError
from tests.support import multimodal, multimodal_processors
from tests.support.multimodal import expected, image, llm_of, prompt
from tests.support.serving import served

TEXT = "plain text, plain text"
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
