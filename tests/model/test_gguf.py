"""Test GGUF files: conversion, its cache, and clear errors."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

import gguf

from paceline import LLM, SamplingParams
from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.integrations.transformers import Strategy
from paceline.model import gguf as gguf_module
from paceline.model import gguf_checkpoint as module
from paceline.model.loading import load_model
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.util import cache
from tests.support.cli import call
from tests.support.gguf import EOS, EOT, TEMPLATE, write_gguf
from tests.support.shared import reference

PROMPTS = [[5, 9, 11, 5, 9], [30, 31, 32], [8, 8, 8, 8]]
_processes = multiprocessing.get_context("forkserver")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of a test."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(folder: Path) -> list[str]:
    """Return the entries in the conversion cache, without lock files."""
    return sorted(path.name for path in folder.glob("gguf-*/*") if path.suffix != ".lock")


@pytest.mark.parametrize(
    ("kind", "near"), [("F32", 1e-3), ("F16", 1e-3), ("Q8_0", 0.02), ("Q4_1", 0.2), ("Q5_0", 0.2)]
)
def test_weights_equal_those_of_the_file(tmp_path: Path, kind: str, near: float) -> None:
    """Compare weights with the `gguf` package's values and with the values that were
    written.
    """
    path = write_gguf(tmp_path / "tiny.gguf", kind)
    model = load_model(path, "float32")
    tensors = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }
    found: dict[str, Any] = dict(model.named_parameters())
    for name, theirs in (
        ("output.weight", "lm_head.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
    ):
        unpacked = torch.from_numpy(tensors[name].copy())
        assert torch.equal(found[theirs], unpacked.bfloat16().float())
    written = {
        tensor.name: tensor.data
        for tensor in gguf.GGUFReader(write_gguf(tmp_path / "plain.gguf")).tensors
    }
    assert (
        found["lm_head.weight"] - torch.from_numpy(written["output.weight"].copy())
    ).abs().max() < near + 4e-3


def test_all_ways_to_load_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    LLM(str(path), "draft_model", draft_model=path, unpack=True)
    assert capsys.readouterr().err.count("converting tiny.gguf") == 1
    assert load_model(path).dtype == torch.bfloat16
    assert load_model(str(path), "float32").dtype == torch.float32
    assert LLM(path, "none", tokenizer=path, unpack=True).tokenizer.eos_token_id == EOS
    assert create("draft_model", draft_model=str(path)).name == "draft_model"
    assert Strategy("draft_model", str(path)) is not None
    assert load_tokenizer(str(path), "elsewhere")("abc")["input_ids"]
    assert (
        call(
            "generate",
            path,
            "abc",
            "--draft-model",
            path,
            "--drafter",
            "draft_model",
            "-n",
            "4",
            "--unpack",
        )[0]
        == 0
    )
    assert len(kept(folder)) == 1
    assert "converting" not in capsys.readouterr().err


def test_answers_equal_transformers(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    model = load_model(path, "float32")
    outs = LLM(path, "lookahead", dtype="float32").generate(
        PROMPTS, SamplingParams(24, ignore_eos=False)
    )
    assert [out.token_ids for out in outs] == [reference(model, prompt, 24) for prompt in PROMPTS]


def test_stop_tokens_and_chat_template_come_from_the_file(tmp_path: Path) -> None:
    llm = LLM(write_gguf(tmp_path / "tiny.gguf"))
    assert llm.eos_token_ids == [EOS, EOT]
    assert llm.tokenizer.chat_template == TEMPLATE
    assert (
        llm.tokenizer.decode(llm.chat_prompt([{"role": "user", "content": "abc"}]))
        .replace(" ", "")
        .count("abc")
        == 1
    )
    assert llm.tokenizer.eos_token_id == EOS
    bare = LLM(write_gguf(tmp_path / "bare.gguf", tokenizer=False))
    assert bare.eos_token_ids == []
    assert len(bare.generate([[5, 6]], SamplingParams(4))[0].token_ids) == 4


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-4000], r"got \d+ of its \d+ bytes: the file is truncated"),
        (lambda content: content[:2000], "header is cut off"),
        (lambda content: content[:10], "header is cut off"),
        (lambda content: b"", "does not start with the GGUF magic bytes"),
        (lambda content: b"PK" + content[2:], "got a file that does not start with the GGUF magic"),
        (lambda content: content[:4] + struct.pack("<I", 9) + content[8:], "GGUF v9"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, folder: Path, damage: Any, words: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ConfigError,
        match=rf"model '.*tiny.gguf': got .*{words.removeprefix('got ')}.*; expected a complete",
    ):
        LLM(path, "none")
    assert kept(folder) == []


def test_formats_unknown_to_transformers_are_refused(tmp_path: Path, folder: Path) -> None:
    cases = {
        "architecture": (
            write_gguf(tmp_path / "a.gguf", architecture="rwkv7"),
            "one that transformers .*rwkv7",
        ),
        "weights": (
            write_gguf(tmp_path / "b.gguf", leave_out="blk.1.attn_q.weight"),
            "no weights for .*q_proj",
        ),
        "parts": (write_gguf(tmp_path / "c.gguf", parts=3), "one of 3 parts"),
        "type": (_with_type(write_gguf(tmp_path / "d.gguf"), 199), "one that transformers .*199"),
    }
    for path, words in cases.values():
        for unpack in (True, False):
            with pytest.raises(ConfigError, match=rf"got {words}.*; expected a complete GGUF file"):
                LLM(path, "none", unpack=unpack)
    with pytest.raises(ConfigError, match=r"from 'no such\.gguf': there is no such file"):
        LLM("no such.gguf")
    assert kept(folder) == []


def _with_type(path: Path, kind: int) -> Path:
    """Write a copy of a file whose first tensor has an unknown type."""
    content = path.read_bytes()
    at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    path.write_bytes(content[:at] + struct.pack("<I", kind) + content[at + 4 :])
    return path


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_module, "_PACKAGES", ("torch", "nobody_has_this"))
    with pytest.raises(
        ConfigError, match=r"needs nobody_has_this\. Run: pip install nobody_has_this"
    ):
        LLM(path, "none")


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    folder.write_text("a file in its place")
    with pytest.raises(
        ConfigError,
        match=r"cache: got '.*cache', which cannot be used .*; expected .*Set PACELINE_CACHE",
    ):
        LLM(path, "none", unpack=True)
    folder.unlink()

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "I/O error: No space left on device (os error 28)"
        )  # as safetensors has it

    with monkeypatch.context() as context:
        context.setattr("transformers.PreTrainedModel.save_pretrained", full)
        with pytest.raises(
            ConfigError,
            match=r"No space left on device.*; expected .*free space. Set PACELINE_CACHE",
        ):
            LLM(path, "none", unpack=True)
    assert kept(folder) == []
    LLM(path, "none", unpack=True)


def test_finished_conversion_may_be_read_only(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = module.converted(path)

    def refused(*_: Any) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(cache, "_locked", refused)
    assert module.converted(path) == first


def test_changed_file_gets_a_new_folder(tmp_path: Path, folder: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = module.converted(path)
    assert module.converted(write_gguf(tmp_path / "copy.gguf")) == first
    assert module.converted(write_gguf(path, seed=1)) != first
    assert len(kept(folder)) == 2


def test_damaged_conversion_is_repeated(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    weights = module.converted(path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert len(LLM(path, "none").generate(PROMPTS[:1], SamplingParams(4))[0].token_ids) == 4


def test_two_processes_convert_once(tmp_path: Path, folder: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    answers = _processes.Queue()
    both = [_processes.Process(target=_convert, args=(path, folder, answers)) for _ in range(2)]
    for process in both:
        process.start()
    found = [answers.get(timeout=120) for _ in both]
    for process in both:
        process.join(60)
    assert sorted(made for made, _ in found) == [0, 1]
    assert found[0][1] == found[1][1]
    assert len(kept(folder)) == 1


def _convert(path: Path, cache_folder: Path, answers: Any) -> None:
    os.environ["PACELINE_CACHE"] = str(cache_folder)
    honest, calls = module._convert, []

    def counted(source: Path, files: Sequence[Path], folder: Path) -> dict[str, Any]:
        calls.append(source)
        time.sleep(1.0)  # so that the other one comes meanwhile
        return honest(source, files, folder)

    setattr(module, "_convert", counted)  # noqa: B010
    found = module.converted(path)
    answers.put((len(calls), str(found)))


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path, folder: Path) -> None:
    path, other = write_gguf(tmp_path / "tiny.gguf"), write_gguf(tmp_path / "other.gguf", seed=1)
    process = _processes.Process(target=_hang, args=(path, folder))
    process.start()
    deadline = time.monotonic() + 60
    while not list(folder.glob("*/*.part/half")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cache.clear() == 0  # it is being made
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert kept(folder) == [f"{cache.checksum(path)}.part"]
    assert cache.entries() == []
    module.converted(other)
    assert kept(folder) == [cache.checksum(other)]
    assert (module.converted(path) / "model.safetensors").is_file()


def _hang(path: Path, cache_folder: Path) -> None:
    os.environ["PACELINE_CACHE"] = str(cache_folder)

    def hanging(source: Path, files: Sequence[Path], folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("half of it")
        time.sleep(300)
        return {}

    setattr(module, "_convert", hanging)  # noqa: B010
    module.converted(path)


def test_the_cache_is_listed_and_cleared(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("cache", "list")
    assert "0 folders" in capsys.readouterr().err
    made = module.converted(write_gguf(tmp_path / "tiny.gguf"))
    card = json.loads((made / cache.CARD).read_text())
    assert card["architecture"] == "llama"
    assert card["source"].endswith("tiny.gguf")
    foreign = folder / "photos-v1" / "holiday"
    foreign.mkdir(parents=True)
    assert "tiny.gguf" in call("cache", "list")[1]
    call("cache", "clear")
    assert foreign.is_dir()
    assert kept(folder) == []
    assert cache.entries() == []


def test_location_of_the_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert cache.root() == folder
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.root() == Path("/somewhere/paceline")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root() == Path.home() / ".cache" / "paceline"
