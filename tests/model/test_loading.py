"""Test checkpoints, tokenizers and devices that cannot be used: each gets one clear error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForMultimodalLM

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError
from paceline.model import loading, sources
from paceline.model.loading import load_model
from paceline.model.sources import missing_source
from tests.conftest import DATA
from tests.support.models import make
from tests.support.shared import reference

WEIGHTS = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a copy of the small target's folder."""
    return Path(shutil.copytree(DATA / "tiny_target", tmp_path / "model"))


@pytest.mark.parametrize(
    "content", [b"", b"garbage " * 100, 100, 0.5], ids=["empty", "garbage", "no header", "half"]
)
def test_damaged_weights(checkpoint: Path, content: bytes | float) -> None:
    whole = (checkpoint / WEIGHTS).read_bytes()
    if not isinstance(content, bytes):
        content = whole[: content if isinstance(content, int) else int(content * len(whole))]
    (checkpoint / WEIGHTS).write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot load .*model.*SafetensorError"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ([WEIGHTS], "a config, but no weights. Download model.safetensors into it"),
        ([WEIGHTS, "config.json"], "the directory has no config.json. Pass the directory of a mod"),
    ],
)
def test_directories_without_a_model(checkpoint: Path, removed: list[str], message: str) -> None:
    for name in removed:
        (checkpoint / name).unlink()
    with pytest.raises(ConfigError, match=message):
        load_model(checkpoint)


def test_a_directory_around_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    with pytest.raises(ConfigError, match=r"no config\.json\. Pass its file x\.gguf"):
        load_model(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="it is a file, but not a GGUF file"):
        load_model(path)


def test_a_missing_draft_model_is_found_before_the_target_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.engine.target_loading.load_target", None)
    with pytest.raises(ConfigError, match="there is no such folder"):
        LLM(DATA / "tiny_target", "draft_model", "./none")


def test_pickled_weights_are_named(checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"weights are pickles .* Convert them to safetensors"):
        load_model(checkpoint)


def test_a_model_that_the_hub_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        # The class needs a response of the library that huggingface_hub uses for requests.
        raise OSError("no access") from HfHubHTTPError.__new__(HfHubHTTPError)

    monkeypatch.setattr("paceline.model.sources._hub_problem", lambda hub_id: "")
    monkeypatch.setattr(
        loading, "_auto_class", lambda source: SimpleNamespace(from_pretrained=refuse)
    )
    with pytest.raises(ConfigError, match="'no/model': it is not a local path, and the hub ref"):
        load_model("no/model")


def test_the_hub_is_asked_once_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are not in the cache need it, such as a target and its draft model."""
    asked: list[str] = []
    replies = iter([OSError("no route"), None])

    def head(url: str, timeout: float) -> None:
        asked.append(url)
        if isinstance(error := next(replies), Exception):
            raise error

    monkeypatch.setattr(sources, "get_session", lambda: SimpleNamespace(head=head))
    sources._reach_hub.cache_clear()
    try:
        found = [missing_source(name) for name in ("no/target", "no/target", "no/draft")]
    finally:
        sources._reach_hub.cache_clear()
    assert "is not reachable" in found[0]
    assert found[1:] == ["", ""]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_attention_heads": 7}, "not a multiple"),
        (
            {"hidden_size": 128},
            r"weights that do not fit its config, as \S+ is of shape \[.*\], not \[",
        ),
        (
            {"num_hidden_layers": 3},
            r"weights that do not fit its config, as model.layers.2.\S+ is missing",
        ),
        ({"num_hidden_layers": -1}, "names no layers"),
        ({"num_hidden_layers": "two"}, "expected int"),
        ({"model_type": "nobody_knows"}, "nobody_knows"),
        (None, "not a valid JSON"),
    ],
)
def test_mismatched_configurations(
    checkpoint: Path, changed: dict[str, Any] | None, message: str
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(
        "{" if changed is None else json.dumps({**config, **changed})
    )
    with pytest.raises(ConfigError, match=message):
        load_model(checkpoint)


@pytest.mark.parametrize("device", ["foo", "cpu:x", "meta", "cuda:99", "mps"])
def test_missing_devices(device: str) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is there")
    with pytest.raises(ConfigError, match=rf"device: got '{device}'.*expected one of: auto, cpu"):
        load_model(DATA / "tiny_target", device=device)


_VISION = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48,
"num_hidden_layers": 1,
           "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
           "projection_dim": 32}  # fmt: skip
_AUDIO = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_mel_bins": 8,
    "max_source_positions": 16,
}
_SENSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llava": (
        AutoModelForImageTextToText,
        {"vision_config": _VISION, "image_token_index": 96, "image_seq_length": 4},
    ),
    "voxtral": (AutoModelForMultimodalLM, {"audio_config": _AUDIO, "audio_token_id": 96}),
}


@pytest.mark.parametrize("model_type", _SENSES)
def test_multimodal_models_answer_text_prompts(model_type: str, tmp_path: Path) -> None:
    auto, options = _SENSES[model_type]
    text = make("llama").config.to_dict()
    torch.manual_seed(0)
    auto.from_config(AutoConfig.for_model(model_type, text_config=text, **options)).save_pretrained(
        tmp_path
    )
    prompts = [[3, 4, 5, 3, 4, 5, 6], [9, 8, 7]]
    llm = LLM(str(tmp_path), "prompt_lookup", dtype="float32")
    assert type(llm.model.model).__name__.endswith("ForConditionalGeneration")
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=12))
    assert [out.token_ids for out in outs] == [
        reference(llm.model.model, prompt, 12) for prompt in prompts
    ]


def test_model_that_is_no_decoder_is_refused_by_name(tmp_path: Path) -> None:
    make("t5").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"Unrecognized configuration class .*T5Config"):
        load_model(tmp_path)


def test_folder_without_read_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(ConfigError, match=r"from 'a/b\.gguf': Permission denied\. Check the path"):
        load_model("a/b.gguf")
