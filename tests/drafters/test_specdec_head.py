"""Test the acceptance head: its formula, its files, compatibility checks and thresholds."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.bench import enlarge
from paceline.drafters.specdec_pp.card import INPUTS, ThresholdPoint, new_card
from paceline.drafters.specdec_pp.head import CARD, WEIGHTS, AcceptanceHead
from paceline.errors import ConfigError
from paceline.model.identity import model_identity
from tests.bench.test_cost_scale import tiny_llama
from tests.support.models import make, rounded, with_new_weights
from tests.support.shared import Pair


def some_head(draft: Any, depth: int = 2, scalars: bool = True, **facts: Any) -> AcceptanceHead:
    card = dataclasses.replace(new_card("target", "draft", draft, depth, INPUTS[scalars]), **facts)
    generator, hidden, inputs = torch.Generator().manual_seed(depth), card.hidden_size, card.inputs
    shapes: dict[str, tuple[int, ...]] = {
        "last.weight": (2, hidden + len(inputs) - 1),
        "last.bias": (2,),
    }
    for place in range(depth):
        shapes |= {f"blocks.{place}.weight": (hidden, hidden), f"blocks.{place}.bias": (hidden,)}
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()
    }
    return AcceptanceHead(card, tensors)


def head_inputs(hidden: int, count: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randn(count, hidden, generator=generator),
        -torch.rand(count, generator=generator),
        torch.rand(count, generator=generator) * 3,
    )


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("scalars", [False, True])
def test_confidences_equal_the_papers_formula(depth: int, scalars: bool) -> None:
    draft = tiny_llama()
    head = some_head(draft, depth, scalars, scale=0.7, shift=-0.3)
    hidden, log_probs, entropies = head_inputs(64)
    wanted = []
    for row, log_prob, entropy in zip(hidden, log_probs, entropies, strict=True):
        x = row
        for place in range(depth):
            inner = (
                head.tensors[f"blocks.{place}.weight"] @ x + head.tensors[f"blocks.{place}.bias"]
            )
            x = x + inner * torch.sigmoid(inner)
        rest = (1 - log_prob.exp()).log()
        x = torch.cat([x, torch.stack([log_prob, rest, entropy])]) if scalars else x
        logits = head.tensors["last.weight"] @ x + head.tensors["last.bias"]
        raw = logits.softmax(-1)[1].logit()
        wanted.append(torch.sigmoid(0.7 * raw - 0.3))
    assert torch.allclose(
        head.confidences(hidden, log_probs, entropies), torch.stack(wanted), atol=1e-5
    )


def test_saved_head_is_loaded(tmp_path: Path) -> None:
    draft = tiny_llama()
    curve = (ThresholdPoint(0.1, 0.5, 0.1), ThresholdPoint(0.5, 0.4, 0.3))
    head = some_head(
        draft,
        3,
        scale=1.5,
        shift=0.25,
        prior=(1.0, 0.0, 0.5, 2.0),
        curve=curve,
        recipe={"seed": 3},
        train_prompts="0123456789abcdef",
    )
    head.save(tmp_path)
    again = AcceptanceHead.load(tmp_path, draft)
    assert again.card == head.card
    assert torch.equal(again.confidences(*head_inputs(64)), head.confidences(*head_inputs(64)))
    assert again.card.seen_prompts == {"01234567", "89abcdef"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [CARD, WEIGHTS]


def test_early_confidences_need_no_hidden_state() -> None:
    _, log_probs, entropies = head_inputs(64)
    assert torch.allclose(
        some_head(tiny_llama()).early_confidences(log_probs, entropies), log_probs.exp()
    )
    head = some_head(tiny_llama(), prior=(1.5, -0.5, 0.25, 0.1))
    logits = 1.5 * log_probs - 0.5 * (1 - log_probs.exp()).log() + 0.25 * entropies + 0.1
    assert torch.allclose(head.early_confidences(log_probs, entropies), logits.sigmoid(), atol=1e-5)
    with pytest.raises(ConfigError, match="got a prior of 2 weights; expected none or 4"):
        some_head(tiny_llama(), prior=(1.0, 2.0))


def test_confidences_of_a_certain_draft_are_finite() -> None:
    hidden, _, entropies = head_inputs(64)
    confidences = some_head(tiny_llama()).confidences(hidden, torch.zeros(9), entropies)
    assert bool(confidences.isfinite().all())


def test_half_precision_hidden_states_are_accepted() -> None:
    head = some_head(tiny_llama())
    hidden, log_probs, entropies = head_inputs(64)
    half = head.confidences(hidden.bfloat16(), log_probs, entropies)
    assert half.dtype == torch.float32
    assert torch.allclose(half, head.confidences(hidden.bfloat16().float(), log_probs, entropies))


def test_fingerprint_does_not_depend_on_precision() -> None:
    stored = tiny_llama().to(torch.bfloat16)
    assert model_identity(copy.deepcopy(stored).float()) == model_identity(stored)
    other = copy.deepcopy(stored)
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight[0, 0] += 1
    assert model_identity(other) != model_identity(stored)


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    draft, rng = tiny_llama(), random.Random(0)
    some_head(draft, 1).save(tmp_path)
    for name in (WEIGHTS, CARD):
        whole = (tmp_path / name).read_bytes()
        for _ in range(300):
            place = rng.randrange(len(whole))
            flipped = (
                whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :]
            )
            (tmp_path / name).write_bytes(whole[:place] if rng.random() < 0.5 else flipped)
            with pytest.raises(ConfigError, match=f"head '{tmp_path}'"):
                AcceptanceHead.load(tmp_path, draft)
        (tmp_path / name).write_bytes(whole)
        AcceptanceHead.load(tmp_path, draft)


def test_weights_of_another_head_are_refused(tmp_path: Path) -> None:
    draft = tiny_llama()
    some_head(draft, 2).save(tmp_path / "one")
    some_head(draft, 1).save(tmp_path / "two")
    (tmp_path / "one" / WEIGHTS).write_bytes((tmp_path / "two" / WEIGHTS).read_bytes())
    with pytest.raises(ConfigError, match="expected the file that its card was written for"):
        AcceptanceHead.load(tmp_path / "one", draft)
    with pytest.raises(ConfigError, match=r"got a card\.json that cannot be read: No such file"):
        AcceptanceHead.load(tmp_path / "three", draft)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"depth": 3}, "got a file with 2 residual blocks; expected 3, the depth in its card"),
        ({"depth": 5}, "got depth 5; expected 0 to 4"),
        (
            {"inputs": ("hidden",)},
            r"got tensor 'last.weight' \(2, 67\).*; expected \(2, 64\).* by its card",
        ),
        (
            {"inputs": ("hidden", "entropy")},
            "got inputs hidden, entropy; expected hidden or hidden, log_prob, log_rest, entropy",
        ),
    ],
)
def test_mismatched_card_is_refused(tmp_path: Path, facts: dict[str, Any], message: str) -> None:
    draft = tiny_llama()
    head = some_head(draft, 2)
    head.save(tmp_path)
    (tmp_path / CARD).write_bytes(dataclasses.replace(head.card, **facts).encode())
    with pytest.raises(ConfigError, match=message):
        AcceptanceHead.load(tmp_path, draft)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("version", 9, "got version 9; expected 2"),
        ("draft_sketch", "1 2 3", r"entries"),
        ("depth", "1", r"depth"),
        ("depth", True, r"depth"),
        ("inputs", "hidden", r"inputs"),
        ("inputs", 3, r"inputs"),
        ("prior", ["x"], r"prior"),
        ("scale", None, r"scale"),
        ("scale", math.nan, r"not finite"),
        ("curve", {"threshold": 1}, r"curve"),
        ("curve", [{"threshold": 0.5}], r"curve"),
        ("recipe", [], r"recipe"),
        ("train_prompts", 7, r"train_prompts"),
        ("more", 1, r"more is unexpected"),
    ],
)
def test_invalid_card_entries_are_refused(
    tmp_path: Path, entry: str, value: Any, message: str
) -> None:
    """Check entries whose checksum is correct."""
    some_head(tiny_llama()).save(tmp_path)
    entries = json.loads((tmp_path / CARD).read_text())
    entries.pop("sha256")
    entries[entry] = value
    sums = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    (tmp_path / CARD).write_text(json.dumps({**entries, "sha256": sums}))
    with pytest.raises(ConfigError, match=message):
        AcceptanceHead.load(tmp_path, tiny_llama())


def test_head_of_another_draft_model_is_refused(pair: Pair, tmp_path: Path) -> None:
    draft = tiny_llama()
    some_head(draft).save(tmp_path)
    with pytest.raises(ConfigError, match=r"closeness is -?0\.\d\d; expected at least 0\.8"):
        AcceptanceHead.load(tmp_path, with_new_weights(draft))
    quantised = copy.deepcopy(draft)
    with torch.no_grad():
        for weight in quantised.parameters():
            weight.copy_(rounded(weight, 4))
    AcceptanceHead.load(tmp_path, quantised)
    with pytest.raises(ConfigError, match="hidden size is 16; expected 64"):
        AcceptanceHead.load(tmp_path, make("six_words_draft"))
    with pytest.raises(ConfigError, match="vocabulary is 256; expected 97"):
        AcceptanceHead.load(tmp_path, pair.draft)


@pytest.mark.parametrize("size", [(256, 7), (96, 3)])
def test_an_enlarged_draft_keeps_its_head(tmp_path: Path, size: tuple[int, int]) -> None:
    draft = tiny_llama()
    some_head(draft, 3).save(tmp_path)
    larger = enlarge(enlarge(draft, 80, 3), *size)
    ids = torch.randint(3, 97, (1, 30), generator=torch.Generator().manual_seed(1))
    _, log_probs, entropies = head_inputs(64, 30)
    with torch.inference_mode():
        own, padded = (model.model(ids).last_hidden_state[0] for model in (draft, larger))
    assert torch.allclose(own, padded[:, :64], atol=1e-4)
    assert not padded[:, 64:].any()
    wanted = AcceptanceHead.load(tmp_path, draft).confidences(own, log_probs, entropies)
    got = AcceptanceHead.load(tmp_path, larger).confidences(padded, log_probs, entropies)
    assert torch.allclose(wanted, got, atol=1e-4)


def write_published_head(
    folder: Path, stored: list[int], depth: int = 3, hidden: int = 64
) -> dict[str, Tensor]:
    """Write a head as the public code saves it, with its one block under these indices."""
    block = torch.randn(hidden, hidden) * 0.2, torch.randn(hidden) * 0.2
    tensors = {
        f"model.{depth}.weight": torch.randn(2, hidden),
        f"model.{depth}.bias": torch.randn(2),
    }
    for place in stored:
        tensors |= {
            f"model.{place}.linear.weight": block[0].clone(),
            f"model.{place}.linear.bias": block[1].clone(),
        }
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"hidden_size": hidden, "num_layers": depth}))
    return tensors


@pytest.mark.parametrize("stored", [[0, 1, 2], [0], [2]])
def test_published_head_is_untied(tmp_path: Path, stored: list[int]) -> None:
    draft = tiny_llama()
    tensors = write_published_head(tmp_path, stored)
    head = AcceptanceHead.load(tmp_path, draft)
    block = tensors[f"model.{stored[0]}.linear.weight"]
    blocks = [head.tensors[f"blocks.{place}.weight"] for place in range(3)]
    assert all(torch.equal(one, block) for one in blocks)
    assert len({one.data_ptr() for one in blocks}) == 3
    x = head_inputs(64)[0]
    for _ in range(3):
        x = x + torch.nn.functional.silu(x @ block.T + tensors[f"model.{stored[0]}.linear.bias"])
    wanted = (x @ tensors["model.3.weight"].T + tensors["model.3.bias"]).softmax(-1)[:, 1]
    assert torch.allclose(head.confidences(*head_inputs(64)), wanted, atol=1e-5)
    head.save(tmp_path / "ours")
    assert torch.equal(
        AcceptanceHead.load(tmp_path / "ours", draft).confidences(*head_inputs(64)),
        head.confidences(*head_inputs(64)),
    )


def test_unusable_published_heads_are_refused(tmp_path: Path) -> None:
    draft = tiny_llama()
    write_published_head(tmp_path, [0, 1, 2])
    (tmp_path / "config.json").write_text('{"hidden_size": 64, "num_layers": 2}')
    with pytest.raises(ConfigError, match=r"got model\.0\.linear.*; expected 2 residual blocks"):
        AcceptanceHead.load(tmp_path, draft)
    write_published_head(tmp_path, [0], hidden=32)
    with pytest.raises(ConfigError, match="hidden size 64; expected 32"):
        AcceptanceHead.load(tmp_path, draft)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="got files that cannot be read"):
        AcceptanceHead.load(tmp_path, draft)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="got a pickled file"):
        AcceptanceHead.load(tmp_path, draft)


def test_no_file_is_unpickled(tmp_path: Path) -> None:
    draft = tiny_llama()
    head = some_head(draft)
    head.save(tmp_path)
    torch.save(head.tensors, tmp_path / WEIGHTS)
    with pytest.raises(ConfigError, match="expected the file that its card was written for"):
        AcceptanceHead.load(tmp_path, draft)


def test_threshold_is_the_cheapest_of_the_curve() -> None:
    rng = random.Random(0)
    curve = tuple(
        ThresholdPoint(0.05 * place, 0.9 - 0.04 * place, 0.002 * place**2) for place in range(1, 20)
    )
    head = some_head(tiny_llama(), curve=curve)
    chosen = []
    for _ in range(50):
        draft = rng.uniform(0.001, 0.01)
        target = draft * rng.uniform(1, 20)
        costs = {
            p.threshold: draft + draft * p.discard_rate + (target - draft) * p.verification_rate
            for p in curve
        }
        chosen.append((target / draft, head.threshold(target, draft)))
        assert costs[chosen[-1][1]] == min(costs.values())
    assert [h for _, h in sorted(chosen)] == sorted(
        h for _, h in chosen
    )  # a slower target needs longer drafts


def test_threshold_without_curve_or_times_is_refused() -> None:
    head = some_head(tiny_llama())
    with pytest.raises(
        ConfigError, match=r"no threshold costs.*paceline head calibrate.*threshold=0\.7"
    ):
        head.threshold(0.1, 0.02)
    with pytest.raises(ConfigError, match=r"got 0\.0 s .*; expected two positive times"):
        some_head(tiny_llama(), curve=(ThresholdPoint(0.5, 0.5, 0.5),)).threshold(0.0, 0.02)
