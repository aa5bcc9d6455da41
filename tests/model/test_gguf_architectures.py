"""Test GGUF files of several architectures: converted and packed weights, and their answers."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

import gguf
from torch import Tensor
from transformers import AutoModelForCausalLM, GgufConfig

from paceline import LLM, SamplingParams
from paceline.backend.packed_experts import PackedExperts
from paceline.backend.packed_tensor import PackedTensor
from paceline.backend.packed_weight import PackedWeight
from paceline.cpu.product_choice import fastest
from paceline.errors import ConfigError
from paceline.model import gguf_tensors
from paceline.model.gguf_conversion import conversion_of, loaded_names, order_of_rows
from paceline.model.identity import model_identity
from paceline.model.loading import load_model
from paceline.model.packed_model import load_described
from paceline.model.weight_formats import packed_formats, with_plain_weights
from paceline.util.environment_key import environment_key
from tests.support.gguf import write_gguf, written
from tests.support.gguf_architectures import (
    write_experts,
    write_hybrid,
    write_mamba,
    write_minimax,
    write_qwen2_moe,
    write_qwen35,
)
from tests.support.gguf_dense import write_gemma4
from tests.support.packed import packed_weight
from tests.support.tiny_configs import tiny_config
from tests.support.versions import require_gguf_architecture

PROMPTS = [[5, 9, 11, 5, 9], [30, 31, 32], [8, 8, 8, 8]]
# Gate and up projections of experts in different formats, one of them without blocks.
MIXED = {"gate_exps": "Q5_0", "up_exps": "BF16", "down_exps": "Q8_0"}
WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: write_gguf(path, "Q4_1"),
    "gemma4": write_gemma4,
    "lfm2": write_hybrid,
    "mamba": write_mamba,
    "minimax-m2-moe": write_minimax,
    "qwen2moe": write_qwen2_moe,
    "qwen3moe": write_experts,
    "qwen3moe-mixed": lambda path: write_experts(path, MIXED),
    "qwen35": write_qwen35,
    "qwen35moe": lambda path: write_qwen35(path, "Q4_1", experts=True),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a cache folder of the test."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", WRITERS)
def test_converted_weights_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    path = _written(name, tmp_path)
    converted = load_model(path, unpack=True)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        gguf_file=path.name,
        config=converted.config,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).state_dict()
    ours = converted.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(weight, theirs[key].bfloat16()) for key, weight in ours.items())


@pytest.mark.parametrize("name", WRITERS)
def test_answers_from_packed_weights_equal_those_of_the_converted_model(
    tmp_path: Path, name: str
) -> None:
    path = _written(name, tmp_path)
    packed, converted = load_model(path, unpack=False), load_model(path, unpack=True)
    found, expected = packed.state_dict(), converted.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(_numbers(found[key]), weight) for key, weight in expected.items())
    assert model_identity(packed) == model_identity(converted)
    assert with_plain_weights(packed).state_dict().keys() == expected.keys()
    experts = [weight for weight in packed.parameters() if weight.dim() == 3 and len(weight) == 4]
    assert all(isinstance(weight, PackedExperts) for weight in experts)
    assert bool(experts) == ("moe" in name)
    first, second = (
        LLM(model, "auto", batch_invariant=True).generate(PROMPTS, SamplingParams(24))
        for model in (packed, converted)
    )
    assert [out.token_ids for out in first] == [out.token_ids for out in second]


def _written(name: str, folder: Path) -> Path:
    return WRITERS[name](folder / "tiny.gguf")


def test_architectures_unknown_to_the_gguf_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_experts(tmp_path / "tiny.gguf")
    monkeypatch.delitem(gguf.MODEL_ARCH_NAMES, gguf.MODEL_ARCH.QWEN3MOE)
    with pytest.raises(ConfigError, match=r"gguf package does not know qwen3moe.*Upgrade"):
        load_model(path)


def _numbers(weight: Any) -> Any:
    return weight.unpacked() if isinstance(weight, PackedTensor) else weight


def test_formats_of_experts_are_counted(tmp_path: Path) -> None:
    model = load_model(write_experts(tmp_path / "tiny.gguf", MIXED), unpack=False)
    assert set(packed_formats(model)) == {"Q4_0", "Q5_0", "Q8_0"}
    assert packed_formats(with_plain_weights(model)) == ()


def test_each_format_of_experts_has_its_own_measurements(tmp_path: Path) -> None:
    files = [
        write_experts(tmp_path / f"{kind}.gguf", {"down_exps": kind}) for kind in ("Q4_0", "Q8_0")
    ]
    assert len({environment_key(load_model(file, unpack=False)) for file in files}) == 2


@pytest.mark.parametrize("invariant", [True, False])
def test_drafts_do_not_change_answers_of_packed_experts(tmp_path: Path, invariant: bool) -> None:
    model = load_model(write_experts(tmp_path / "tiny.gguf"), unpack=False)
    expected = LLM(model, "none", batch_invariant=invariant).generate(PROMPTS, SamplingParams(24))
    for drafter in ("prompt_lookup", "token_recycling", "lookahead"):
        llm = LLM(model, drafter, batch_invariant=invariant)
        outs = llm.generate(PROMPTS, SamplingParams(24))
        if invariant:
            assert [out.token_ids for out in outs] == [out.token_ids for out in expected]


def test_packed_experts_never_run_in_transformers(tmp_path: Path) -> None:
    """The model is too small for products to be timed."""
    model: Any = load_model(write_experts(tmp_path / "tiny.gguf"), unpack=False)
    assert fastest(model).override(model.model.layers[0].mlp.experts) is not None


def test_packed_experts_equal_plain_ones() -> None:
    gate, gate_numbers = packed_weight("Q4_K", 4 * 16, 256)
    up, up_numbers = packed_weight("Q6_K", 4 * 8, 256)
    plain = up_numbers.clone()
    for part, numbers in ((up, up_numbers), (plain, plain)):
        experts = PackedExperts((gate, part), 4)
        together = torch.cat([gate_numbers.view(4, 16, 256), numbers.view(4, 8, 256)], dim=1)
        assert torch.equal(experts.unpacked(), together)
        row_ids = torch.tensor([0, 95, 17, 40, 23, 24])
        assert torch.equal(experts.unpacked(row_ids), together.view(96, 256)[row_ids])
        assert torch.equal(experts[2], together[2])
        with torch.inference_mode():
            assert torch.equal(experts[1:3], together[1:3])
            assert torch.equal(experts.transpose(1, 2), together.transpose(1, 2))
        assert isinstance(copy.deepcopy(experts), PackedExperts)
        assert "4 experts" in repr(experts)
        with pytest.raises(RuntimeError, match="a packed weight cannot be changed"):
            experts.zero_()


def test_each_expert_is_multiplied_without_a_copy() -> None:
    weight, numbers = packed_weight("Q8_0", 4 * 16, 64)
    experts, used = PackedExperts((weight,), 4), []

    def multiply(rows: Tensor, part: Any, bias: Tensor | None) -> Tensor:
        used.append(part)
        return torch.matmul(rows, part.unpacked().T)

    rows = torch.ones(3, 64, dtype=torch.bfloat16)
    for _ in range(2):
        product = experts.multiply_rows(rows, 2, multiply)
        assert torch.equal(product, rows @ numbers[32:48].T)
    assert used[0] is used[1]
    assert isinstance(used[0], PackedWeight)
    size = weight.blocks.shape[1]
    assert used[0].blocks.data_ptr() == weight.blocks.data_ptr() + 32 * size


def test_buffers_of_a_checkpoint_are_read(tmp_path: Path) -> None:
    """Gemma 4 scales each layer's output by a buffer that the file contains."""
    require_gguf_architecture("gemma4")
    model = AutoModelForCausalLM.from_config(tiny_config("gemma4_text"), dtype=torch.bfloat16)
    for layer, each in enumerate(model.model.layers):
        each.layer_scalar.fill_(0.5 + layer)
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "gemma4")
    conversion = conversion_of("gemma4", model, _Everything())
    for name in loaded_names(model):
        (stored,) = conversion.sources(name)
        writer.add_tensor(stored, model.state_dict()[name].float().numpy())
    written(writer, path)
    table = gguf_tensors.read([path])
    table.connect(model, "gemma4")
    table.write(tmp_path)
    model.config.save_pretrained(tmp_path)
    model.generation_config.save_pretrained(tmp_path)
    found = load_described(path, [path], tmp_path).state_dict()
    assert torch.equal(found["model.layers.1.layer_scalar"], torch.tensor([1.5]).bfloat16())
    for name, weight in model.state_dict().items():
        assert torch.equal(_numbers(found[name]), weight), name


class _Everything(frozenset[str]):
    """A set that contains every name."""

    def __contains__(self, name: object) -> bool:
        return name is not None


class _Function:
    """A conversion that applies a function to one tensor."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def sources(self, name: str) -> tuple[str, ...]:
        return (name,)

    def converted(self, name: str, numbers: Any) -> Any:
        return self._function(*numbers.values())


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (lambda rows: rows, (4, 3), [0, 1, 2, 3]),
        (lambda rows: rows[::-1], (4, 3), [3, 2, 1, 0]),
        (lambda rows: rows * 2, (4, 3), None),
        (lambda rows: rows - 1, (4,), None),
        (lambda rows: -rows, (1, 3), None),
        (lambda rows: rows.T, (4, 3), None),
        (lambda rows: rows[:, [2, 1, 0]], (4, 3), None),
        (lambda rows: rows[None], (4, 3), None),
        (lambda rows: rows[::-1], (2, 4, 3), None),
        (lambda rows: rows, (2, 2, 3), [0, 1, 2, 3]),
    ],
)
def test_the_order_of_rows_is_found(
    function: Callable[[Any], Any], shape: tuple[int, ...], expected: Any
) -> None:
    found = order_of_rows(_Function(function), "weight", {"weight": shape})
    assert (None if found is None else found.tolist()) == expected


def test_undefined_results_of_a_conversion_cause_no_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        order = order_of_rows(_Function(lambda rows: np.log(-rows)), "weight", {"weight": (4, 3)})
    assert order is None
    assert not caught


def test_sizes_of_experts_come_from_the_header(tmp_path: Path) -> None:
    model = load_model(write_experts(tmp_path / "tiny.gguf"), unpack=False)
    assert model.config.moe_intermediate_size == 64
    stored = json.loads(next((tmp_path / "cache").glob("*/*/tensors.json")).read_text())
    assert [len(each[0]) for each in stored["weights"].values()].count(2) == 1
