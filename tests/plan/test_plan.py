"""Test plans against values computed by hand: sizes, devices, curves, best sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.plan.acceptance import SHIPPED, Acceptance, read_acceptance
from paceline.plan.config import read_card
from paceline.plan.hardware import HARDWARE, find_hardware
from paceline.plan.model_settings import DENSE_MATRICES, EXPERT_SIZE_FIELDS
from paceline.plan.named import plan_named
from paceline.plan.plan_settings import LLAMA_2_7B
from paceline.plan.planning import ForwardTime, best_of, steps_of
from paceline.plan.report import KIND, draw_plan, tables, write_plan
from paceline.plan.roofline import Matmul
from paceline.report.documents import read_document
from tests.support.models import make
from tests.support.tree_models import TREES

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = LLAMA_3_8B | {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
CURVE = Acceptance("by hand", (0, 2, 4), (1.0, 2.0, 2.2))


def config(folder: Path, values: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    "name",
    [name for name, (kind, _) in TREES.items() if kind in {**DENSE_MATRICES, **EXPERT_SIZE_FIELDS}],
)
def test_sizes_are_those_of_the_real_model(name: str, tmp_path: Path) -> None:
    """A plan counts every matrix that transformers allocates for the architecture."""
    model = make(name)
    model.config.save_pretrained(tmp_path)
    card = read_card(str(tmp_path), "float32")
    assert card.parameters == sum(
        weight.numel() for weight in model.parameters() if weight.dim() > 1
    )
    sliding = (getattr(model.config, "layer_types", None) or []).count("sliding_attention")
    if getattr(model.config, "layer_types", None):
        assert card.shapes.windowed == sliding
    assert card.context_length == model.config.max_position_embeddings


def test_every_architecture_that_is_claimed_is_tested_or_a_relative_of_one() -> None:
    untested = {**DENSE_MATRICES, **EXPERT_SIZE_FIELDS}.keys() - {
        kind for kind, _ in TREES.values()
    }
    assert untested <= {"olmo", "smollm3", "qwen2_moe"}


def test_llama_3_8b_by_hand(tmp_path: Path) -> None:
    card = read_card(config(tmp_path, LLAMA_3_8B))
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    assert (
        card.parameters == 32 * (attention + 3 * 4096 * 14336) + 2 * 4096 * 128256
    )  # 8.03 B with norms
    assert card.weight_bytes == 2 * card.parameters
    assert card.shapes.cache_bytes == 2 * 32 * 8 * 128 * 2 == 131072
    (work,) = card.shapes.attention(8, 4, 1000)
    assert work.flops == 4 * 8 * 4 * 1004 * 32 * 128
    assert work.read == 8 * (2 * 1004 * 8 * 128 + 4 * 32 * 128) * 2 + 8 * 4 * 1004
    tied = read_card(config(tmp_path, LLAMA_3_8B | {"tie_word_embeddings": True}))
    assert card.parameters - tied.parameters == 4096 * 128256
    narrow = read_card(config(tmp_path, LLAMA_3_8B), weight_bits=4)
    assert narrow.weight_bytes == card.weight_bytes - 1.5 * 32 * (attention + 3 * 4096 * 14336)


def test_experts_by_hand(tmp_path: Path) -> None:
    experts = Matmul("experts", 4096, 14336, 32, 8, 2)
    assert experts.touched(1) == 2
    assert experts.touched(2) == pytest.approx(8 * (1 - 0.75**2)) == 3.5
    assert Matmul("dense", 4, 4, 1).touched(7) == 1
    card = read_card(config(tmp_path, MIXTRAL))
    assert card.parameters == pytest.approx(46.7e9, rel=1e-3)
    products = card.shapes.products(1, 2)
    work = next(product for product in products if product.name == "experts up_proj")
    assert work.flops == 2 * (2 * 2) * 4096 * 14336, "two tokens through two experts each"
    assert work.read == 2 * (4 * 4096 + 3.5 * 4096 * 14336)


def test_sliding_layers_read_their_window(tmp_path: Path) -> None:
    card = read_card(
        config(
            tmp_path, LLAMA_3_8B | {"model_type": "gemma2", "head_dim": 128, "sliding_window": 64}
        )
    )
    full, window = card.shapes.attention(1, 1, 1000)
    assert (full.count, window.count) == (16, 16)
    assert window.read / full.read == pytest.approx((2 * 65 * 8 + 32) / (2 * 1001 * 8 + 32))
    assert (
        read_card(
            config(tmp_path, LLAMA_3_8B | {"model_type": "qwen2", "sliding_window": 64})
        ).shapes.windowed
        == 0
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "mistrall"},
            "model_type 'mistrall' is not supported. Did you mean 'mistral'",
        ),
        ({"model_type": "deepseek_v3"}, "'deepseek_v3' is not supported"),
        ({"hidden_size": None}, "hidden_size: got nothing; expected a whole number"),
        ({"vocab_size": "many"}, "vocab_size: got 'many'"),
        ({"torch_dtype": None}, "its config.json names no dtype"),
        ({"torch_dtype": "int8"}, "dtype: got 'int8'"),
        ({"model_type": "qwen3"}, "head_dim: got nothing"),
        ({"layer_types": ["linear_attention"]}, "layers of linear_attention are not supported"),
        (
            {"quantization_config": {"quant_method": "odd"}},
            "quantization_config of 'odd' does not give the bits",
        ),
        (
            {"model_type": "qwen2_moe", "mlp_only_layers": [0]},
            "dense layers between layers with experts",
        ),
    ],
)
def test_configs_that_cannot_be(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_card(config(tmp_path, LLAMA_3_8B | change))


def test_devices() -> None:
    assert find_hardware("H100").peak("bfloat16").ratio == pytest.approx(989.4 / 3.35)
    assert find_hardware("a100").peak("float16", 2).flops == 624e12
    with pytest.raises(ConfigError, match=r"got 'h10'\. Did you mean 'h100'"):
        find_hardware("h10")
    with pytest.raises(
        ConfigError,
        match="got 'bfloat16'; expected one that NVIDIA T4 computes in: float16, float32",
    ):
        find_hardware("t4").peak("bfloat16")
    assert all(device.source and device.memory > 1e9 for device in HARDWARE.values())


def test_curves_of_acceptance(tmp_path: Path) -> None:
    assert [CURVE.of(nodes) for nodes in (0, 1, 2, 3)] == [1, 1.5, 2, pytest.approx(2.1)]
    for name in SHIPPED:
        curve = read_acceptance(name)
        assert (curve.nodes[:2], curve.tokens[0], curve.most) == ((0, 1), 1.0, 128)
    path = tmp_path / "curve.json"
    rows = [
        {"drafter": "sssd", "max_nodes": 8, "tokens": 10, "steps": 5},
        {"drafter": "sssd", "max_nodes": 8, "tokens": 50, "steps": 15},
    ]
    path.write_text(json.dumps({"kind": "paceline replay", "rows": rows}))
    assert read_acceptance(str(path)).tokens == (1.0, 3.0), (
        "sums over sums, and not the mean of ratios"
    )
    for content in (
        {"8": 9.5},
        {"8": 0.5},
        {"eight": 2},
        {},
        [1],
        {"kind": "paceline replay", "rows": [{"drafter": "sssd"}]},
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ConfigError, match="tokens_per_forward"):
            read_acceptance(str(path))
    with pytest.raises(ConfigError, match="Did you mean 'chat'"):
        read_acceptance("cha")


def test_the_best_size_by_hand() -> None:
    """Each further row costs a quarter of plain decoding, so size 3 is the best."""
    steps = steps_of(lambda batch, size: ForwardTime(4.0 + batch * (size - 1)), CURVE, 1, 5)
    assert [step.relative for step in steps] == [1, 1.25, 1.5, 1.75, 2]
    assert best_of(steps).size == 3
    assert best_of(steps).speedup == pytest.approx(2 / 1.5)
    assert best_of(steps).tokens_per_second == pytest.approx(2 / 6)
    expensive = steps_of(lambda batch, size: ForwardTime(4.0 * size), CURVE, 1, 5)
    assert best_of(expensive).size == 1, "plain decoding is best if every row costs a forward"


def test_the_paper_and_the_plan_agree_on_its_model(tmp_path: Path) -> None:
    """The config.json of Llama-2 7B gives the paper's shapes and its free budget."""
    values = LLAMA_3_8B | {
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
    }
    card = read_card(config(tmp_path, values))
    assert card.shapes == LLAMA_2_7B
    plan = plan_named(card, HARDWARE["ascend-910b4"], read_acceptance("chat"), batch=8)
    assert plan.budget == pytest.approx(422.14, abs=0.01)
    by_size = {step.size: step.relative for step in plan.steps}
    assert by_size[48] < 1.2 < by_size[64] < by_size[128] / 1.6


def test_a_plan_is_written_read_and_drawn(tmp_path: Path) -> None:
    card = read_card(config(tmp_path, LLAMA_3_8B))
    plan = plan_named(card, HARDWARE["rtx4090"], CURVE, batch=4, context=8190, devices=2)
    assert [step.size for step in plan.steps] == [1, 2], "the model's context ends there"
    assert {step.batch for step in plan.batches} >= {1, 4, 256}
    write_plan(plan, tmp_path / "plan.json")
    assert read_document(tmp_path / "plan.json", KIND) == plan
    draw_plan(plan, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10000
    assert [table.title.split(",")[0] for table in tables(plan)][1:] == [
        "The best size by batch",
        "Operations in a forward pass",
    ]
    crowded = plan_named(card, HARDWARE["rtx4090"], CURVE, batch=64, context=2048)
    assert any("do NOT fit into 24 GB" in note for note in crowded.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch: got 0; expected at least 1"),
        ({"context": 8192}, "context: got 8192; expected at most 8191"),
        ({"context": -1}, "context: got -1"),
        ({"devices": 3}, "tensor_parallel: got 3; expected a divisor of the model's 32 heads"),
        ({"devices": 16}, "a divisor of the model's 8 key heads"),
    ],
)
def test_plans_that_cannot_be(options: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_named(read_card(config(tmp_path, LLAMA_3_8B)), HARDWARE["h100"], CURVE, **options)
