"""Test GGUF models with packed weights: equal to the converted model, and clear errors."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

import gguf
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.backend.block_formats import BLOCK_FORMATS
from paceline.backend.packed_weight import PackedWeight
from paceline.draft_head.find import find_draft_head
from paceline.errors import ConfigError
from paceline.model import gguf_header, loading, packed_model
from paceline.model.eagle.modules import embedding_and_lm_head
from paceline.model.gguf_tensors import empty_model
from paceline.model.identity import Sketch, model_identity
from paceline.model.loading import load_model
from paceline.model.weight_formats import packed_formats, with_plain_weights
from paceline.util.environment_key import environment_key
from tests.support.gguf import EOS, EOT, TEMPLATE, write_gguf
from tests.support.shared import reference
from tests.support.tiny_configs import tiny_config

PROMPTS = [[5, 9, 11, 5, 9], [30, 31, 32], [8, 8, 8, 8]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of a test."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_answers_equal_those_of_the_converted_model(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", kind)
    packed, unpacked = load_model(path, unpack=False), load_model(path)
    own: dict[str, Any] = dict(packed.named_parameters())
    for name, weight in unpacked.named_parameters():
        found = own.pop(name)
        numbers = found.unpacked() if isinstance(found, PackedWeight) else found
        assert torch.equal(numbers, weight), name
    assert not own
    assert isinstance(packed.lm_head.weight, PackedWeight) == (kind != "BF16")
    assert model_identity(packed) == model_identity(unpacked)
    assert Sketch.from_model(unpacked).resembles(packed)
    first, second = (
        LLM(model, "auto", batch_invariant=True).generate(PROMPTS, SamplingParams(24))
        for model in (packed, unpacked)
    )
    assert [out.token_ids for out in first] == [out.token_ids for out in second]


def test_each_format_has_its_own_measurements(tmp_path: Path) -> None:
    files = [write_gguf(tmp_path / f"{kind}.gguf", kind) for kind in ("Q4_0", "Q8_0")]
    keys = [environment_key(load_model(file, unpack=False)) for file in (*files, files[0])]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


@pytest.mark.parametrize("tied", [False, True])
def test_a_copy_with_plain_weights_equals_the_converted_model(tmp_path: Path, tied: bool) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    packed, unpacked = load_model(path, unpack=False), load_model(path)
    models: list[Any] = [packed, unpacked]
    for model in models if tied else ():
        model.lm_head.weight = model.model.embed_tokens.weight
    copied: Any = with_plain_weights(packed)
    assert packed_formats(packed) == ("Q8_0",)
    assert packed_formats(copied) == packed_formats(unpacked) == ()
    found, expected = dict(copied.named_parameters()), dict(unpacked.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert (copied.lm_head.weight is copied.model.embed_tokens.weight) == tied
    assert reference(copied, PROMPTS[0], 12) == reference(unpacked, PROMPTS[0], 12)


def test_draft_heads_read_packed_weights(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    packed, unpacked = load_model(path, unpack=False), load_model(path)
    modules = zip(embedding_and_lm_head(packed), embedding_and_lm_head(unpacked), strict=True)
    for own, other in modules:
        weight: Any = own.weight
        assert isinstance(weight, PackedWeight)
        assert torch.equal(weight.unpacked(), cast("torch.Tensor", other.weight))
    model: Any = LLM(packed, "none").model
    assert find_draft_head(model) is not None


@pytest.mark.parametrize("has_kernels", [True, False])
def test_packed_weights_are_the_default_with_bfloat16_instructions(
    tmp_path: Path, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "has_bfloat16_kernels", lambda: has_kernels)
    path = tmp_path / "tiny.gguf"
    assert loading.must_unpack(path, "auto", "cpu", None) != has_kernels
    assert not loading.must_unpack(path, "bfloat16", "cpu", False)
    assert loading.must_unpack(path, "float32", "cpu", False)
    assert loading.must_unpack(path, "auto", "cpu", True)
    assert loading.must_unpack(tmp_path / "folder", "auto", "cpu", False)


def test_tokenizer_and_stop_tokens_come_from_the_header(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM(write_gguf(tmp_path / "tiny.gguf", "Q8_0"), unpack=False)
    assert llm.eos_token_ids == [EOS, EOT]
    assert llm.tokenizer.chat_template == TEMPLATE
    assert "converting" not in capsys.readouterr().err
    assert not list(folder.glob("gguf-v*/*"))
    assert not list(folder.glob(f"{gguf_header.KIND}/*/*.safetensors"))


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2"]
)
def test_an_empty_model_has_the_buffers_of_an_initialised_one(model_type: str) -> None:
    """Buffers such as rotary frequencies are not in the file."""
    config = tiny_config(model_type)
    empty = dict(empty_model(config).named_buffers())
    initialised = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).named_buffers()
    for name, buffer in initialised:
        assert empty.pop(name).equal(buffer), name
    assert not empty


def test_blocks_are_read_from_the_mapped_file(tmp_path: Path) -> None:
    """Two loads share the bytes of the file, and rows of queries and keys are read in their
    order.
    """
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    model: Any = load_model(path, unpack=False)
    (stored,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_q.weight")
    query = model.model.layers[0].self_attn.q_proj.weight
    assert query.order is not None
    assert query.blocks.numpy().tobytes() == stored.data.tobytes()
    mapped = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line
    ]
    assert any(
        int(line.split("-")[0], 16)
        <= query.blocks.data_ptr()
        < int(line.split("-")[1].split()[0], 16)
        for line in mapped
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-4000], r"\d+ of its \d+ bytes"),
        (lambda content: content[:2000], "header is cut off"),
        (lambda content: b"PK" + content[2:], "GGUF magic bytes"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, folder: Path, damage: Any, words: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=words):
        LLM(path, "none", unpack=False)
    assert not list(folder.glob(f"{gguf_header.KIND}/*/paceline.json"))


def test_unknown_formats_are_refused_with_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    known = {key: each for key, each in BLOCK_FORMATS.items() if each.name != "Q8_0"}
    monkeypatch.setattr(packed_model, "BLOCK_FORMATS", known)
    with pytest.raises(
        ConfigError, match=r"got weights in Q8_0; expected one of: F32, F16, .*unpack=True"
    ):
        LLM(path, "none", unpack=False)


def test_other_faults_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = write_gguf(tmp_path / "a.gguf", "Q8_0", leave_out="blk.1.attn_q.weight")
    with pytest.raises(ConfigError, match=r"no weights for .*q_proj"):
        load_model(missing, unpack=False)
    shard = write_gguf(tmp_path / "tiny-00001-of-00003.gguf", "Q8_0")
    with pytest.raises(ConfigError, match=r"got 1 of its 3 files; .*Put tiny-00002-of-00003"):
        load_model(shard, unpack=False)
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    stamps = iter(range(9))
    monkeypatch.setattr(packed_model, "_stamp", lambda _: next(stamps))
    with pytest.raises(ConfigError, match="the file changed while it was read"):
        load_model(path, unpack=False)


def test_files_without_a_model_are_refused(tmp_path: Path) -> None:
    adapter = _write_kind(tmp_path / "adapter.gguf", "llama", "adapter")
    with pytest.raises(ConfigError, match=r"adapter.gguf': got an adapter; expected a model"):
        load_model(adapter, unpack=False)
    images = _write_kind(tmp_path / "images.gguf", "clip", "mmproj")
    with pytest.raises(ConfigError, match="got a file of type 'mmproj'; expected a complete GGUF"):
        load_model(images, unpack=False)
    encoder = write_gguf(tmp_path / "encoder.gguf", "Q8_0", architecture="t5encoder")
    with pytest.raises(ConfigError, match="got architecture t5encoder, which is not a decoder"):
        load_model(encoder, unpack=False)
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"folder.gguf': the directory has no config.json"):
        load_model(folder, unpack=False)


def test_a_tensor_of_another_size_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    content, name = path.read_bytes(), b"blk.0.ffn_up.weight"
    start = content.index(name) + len(name) + 4  # after the number of dimensions
    inner, outer = struct.unpack_from("<QQ", content, start)
    sizes = struct.pack("<QQ", inner, outer - 8)
    path.write_bytes(content[:start] + sizes + content[start + 16 :])
    with pytest.raises(
        ConfigError, match=r"up_proj.weight has the shape \[88, 64\] instead of \[96, 64\]"
    ):
        load_model(path, unpack=False)


def _write_kind(path: Path, architecture: str, kind: str) -> Path:
    """Write a GGUF file that is not a model."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.add_tensor("v.blk.0.attn_q.weight", np.zeros((8, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_shards_are_loaded_as_one_model(tmp_path: Path) -> None:
    plain = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    _split(plain, tmp_path)
    model = load_model(tmp_path / "tiny-00002-of-00002.gguf", unpack=False)
    expected = load_model(plain, unpack=False)
    assert model_identity(model) == model_identity(expected)


def _split(path: Path, folder: Path) -> None:
    """Write the tensors of a file into two files, as llama.cpp's gguf-split does."""
    reader = gguf.GGUFReader(path)
    half = len(reader.tensors) // 2
    for number, tensors in enumerate((reader.tensors[:half], reader.tensors[half:]), 1):
        writer = gguf.GGUFWriter(folder / f"tiny-{number:05}-of-00002.gguf", "llama")
        for name, field in reader.fields.items() if number == 1 else ():
            if not name.startswith(("GGUF.", "general.architecture")):
                writer.add_key_value(name, field.contents(), *field.types[:2])
        writer.add_uint16("split.count", 2)
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
