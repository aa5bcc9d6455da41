"""Test acceptance heads: training, evaluation and the cost of thresholds."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch

from paceline import demo
from paceline.bench import enlarge
from paceline.drafters.specdec_pp.card import INPUTS
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import ConfigError
from paceline.model.loading import load_model
from paceline.training.acceptance_head.calibrate import calibrate
from paceline.training.acceptance_head.evaluate import (
    HEAD,
    draw_judgement,
    evaluate,
    write_judgement,
)
from paceline.training.acceptance_head.fitting import weighted_loss
from paceline.training.acceptance_head.metrics import (
    calibration_error,
    reliability_bins,
    roc_area,
)
from paceline.training.acceptance_head.recording import read_recording
from paceline.training.acceptance_head.settings import TrainConfig
from paceline.training.acceptance_head.train import split_prompts, train
from tests.support.cli import call
from tests.support.recordings import record_pair, synthetic_recording
from tests.support.shared import Pair


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the embedded pair on twelve prompts and return the folder."""
    folder = tmp_path_factory.mktemp("recorded")
    record_pair(folder, limit=12, max_new_tokens=24, keep=0.5)
    return folder


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("reject_weight", [1.0, 6.0])
def test_trained_head_predicts_and_is_calibrated(
    pair: Pair, tmp_path: Path, depth: int, reject_weight: float
) -> None:
    recording = synthetic_recording(tmp_path, pair, 60, 200)
    head = train(
        [recording],
        TrainConfig(depth=depth, reject_weight=reject_weight, epochs=3, lr=3e-3, batch=128),
    )
    quality = evaluate(head, [recording]).qualities
    truth = torch.sigmoid(2 * recording.hidden[:, 0].float() + recording.log_probs + 1)
    assert quality[HEAD].roc_area > roc_area(truth, recording.labels) - 0.08
    assert quality[HEAD].calibration_error < 0.06  # of 1,200 draws
    assert quality[HEAD].log_loss < quality["draft's top-1 probability"].log_loss
    if reject_weight > 1:
        assert head.card.shift > 0.5  # the raw head is biased towards rejections
    first = head.early_confidences(recording.log_probs, recording.entropies)
    assert float(first.mean()) == pytest.approx(float(recording.labels.mean()), abs=0.02)
    assert roc_area(first, recording.labels) > 0.5


def test_diverging_learning_rate_is_refused(pair: Pair, tmp_path: Path) -> None:
    recording = synthetic_recording(tmp_path, pair, count=20, each=10)
    with pytest.raises(ConfigError, match=r"lr: got .*not finite"):
        train([recording], TrainConfig(epochs=1, lr=1e30))


def test_training_is_reproducible_from_its_card(pair: Pair, tmp_path: Path) -> None:
    recording = synthetic_recording(tmp_path, pair, count=20, each=10)
    config = TrainConfig(depth=2, epochs=2)
    first, second, other = (
        train([recording], config),
        train([recording], config),
        train([recording], dataclasses.replace(config, seed=1)),
    )
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    assert first.card == second.card
    assert not torch.equal(first.tensors["last.weight"], other.tensors["last.weight"])
    assert not torch.equal(first.tensors["blocks.0.weight"], first.tensors["blocks.1.weight"])
    assert (first.card.depth, first.card.inputs, first.card.recipe["train"]["reject_weight"]) == (
        2,
        INPUTS[1],
        6.0,
    )
    assert first.card.recipe["positions"] == 200
    assert 0 <= first.card.metrics["held_out"][HEAD]["calibration_error"] <= 1
    first.save(tmp_path / "head")
    assert AcceptanceHead.load(tmp_path / "head", pair.draft).card == first.card


def test_training_and_held_out_prompts_are_disjoint(pair: Pair, tmp_path: Path) -> None:
    first, second = (
        synthetic_recording(tmp_path / "a", pair, 30, 5),
        synthetic_recording(tmp_path / "b", pair, 40, 5),
    )
    head = train([first, second], TrainConfig(depth=0, epochs=1))
    assert set(first.names) < set(second.names)
    training, dev, held_out = split_prompts(sorted(second.names), TrainConfig())
    assert not set(training) & set(dev) | set(training) & set(held_out) | set(dev) & set(held_out)
    assert head.card.seen_prompts == set(training) | set(dev)
    judgement = evaluate(head, [first, second])
    assert judgement.prompts == len(held_out)
    assert judgement.positions == 5 * sum(name in held_out for name in first.names + second.names)
    seen = second.of_prompts(set(training))
    assert len(seen) == 5 * len(training)
    with pytest.raises(ConfigError, match="got a head that was trained on every prompt"):
        evaluate(head, [dataclasses.replace(second, names=[training[0]] * len(second.names))])


def test_mismatched_recordings_are_refused(pair: Pair, tmp_path: Path) -> None:
    recording, other = (
        synthetic_recording(tmp_path / "a", pair, 30, 5),
        record_pair(tmp_path / "b", limit=2),
    )
    with pytest.raises(ConfigError, match="got recordings of different draft models"):
        train([recording, other])
    with pytest.raises(ConfigError, match="got 2 prompts, which cannot be split"):
        train([other])
    with pytest.raises(ConfigError, match="no recording"):
        train([])
    head = train([recording], TrainConfig(depth=0, epochs=1))
    with pytest.raises(ConfigError, match="got a recording of draft"):
        evaluate(head, [read_recording(tmp_path / "b")])
    for options in (
        {"depth": 5},
        {"reject_weight": 0.0},
        {"lr": float("nan")},
        {"epochs": 0},
        {"dev": 0.9},
    ):
        with pytest.raises(ConfigError, match=rf"{next(iter(options))}(=|: got )"):
            TrainConfig(**options)


def test_loss_equals_the_papers() -> None:
    logits, labels = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([1.0, 0.25, 0.0])
    chances = logits.sigmoid()
    total = -(labels * chances.log() + 6 * (1 - labels) * (1 - chances).log()).sum()
    assert float(weighted_loss(logits, labels, 6.0)) == pytest.approx(
        float(total / (6 * (1 - labels).sum() + labels.sum()))
    )


def test_metrics_by_hand_and_by_brute_force() -> None:
    chances, labels = (
        torch.tensor([0.05, 0.05, 0.62, 0.62, 0.99]),
        torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]),
    )
    assert [entry.count for entry in reliability_bins(chances, labels)] == [2, 2, 1]
    assert calibration_error(chances, labels) == pytest.approx(
        (2 * 0.45 + 2 * 0.12 + 0.01) / 5, abs=1e-6
    )
    rng = random.Random(0)
    for _ in range(20):
        scores = [rng.randrange(5) / 5 for _ in range(12)]
        soft = [rng.random() for _ in range(12)]
        pairs = list(itertools.product(zip(scores, soft, strict=True), repeat=2))
        wins = sum(a * (1 - b) * ((x > y) + 0.5 * (x == y)) for (x, a), (y, b) in pairs)
        assert roc_area(torch.tensor(scores), torch.tensor(soft)) == pytest.approx(
            wins / (sum(soft) * sum(1 - entry for entry in soft)), abs=1e-5
        )
    assert roc_area(torch.tensor([0.1, 0.2]), torch.ones(2)) == 0.5


def test_evaluation_is_drawn_and_written(pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    recording = synthetic_recording(tmp_path / "a", pair, 30, 5)
    judgement = evaluate(train([recording], TrainConfig(depth=0, epochs=1)), [recording])
    draw_judgement(judgement, tmp_path / "plot.png")
    write_judgement(judgement, tmp_path / "result.json")
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"
    assert '"roc_area"' in (tmp_path / "result.json").read_text()


def test_curve_is_measured_on_development_prompts(pair: Pair, tmp_path: Path) -> None:
    recording = synthetic_recording(tmp_path, pair, 20, 20)
    head = train([recording], TrainConfig(depth=0, epochs=2))
    with pytest.raises(ConfigError, match="no threshold costs are stored"):
        head.threshold(1.0, 0.1)
    curved = calibrate(head, [recording], pair.target, pair.draft, thresholds=(0.1, 0.5, 0.95))
    curve = curved.card.curve
    assert [point.threshold for point in curve] == [0.1, 0.5, 0.95]
    assert curve[0].verification_rate >= curve[-1].verification_rate
    assert curve[0].discard_rate <= curve[-1].discard_rate
    assert all(
        0 < point.verification_rate <= 1 + 1 / 8 and point.discard_rate >= 0 for point in curve
    )
    assert curved.threshold(1.0, 0.1) in (0.1, 0.5, 0.95)
    with pytest.raises(ConfigError, match="got no development prompts of this head"):
        calibrate(
            head, [dataclasses.replace(recording, names=["00000000"] * 20)], pair.target, pair.draft
        )


def test_commands(recorded: Path, tmp_path: Path) -> None:
    folder, result = str(tmp_path / "head"), str(tmp_path / "judged.json")
    calls = (
        [
            "train",
            str(recorded),
            "--out",
            folder,
            "--depth",
            "1",
            "--epochs",
            "2",
            "--note",
            "a test",
        ],
        ["evaluate", folder, str(recorded), "--json", result],
        ["calibrate", "demo", folder, str(recorded), "--limit", "1", "--dtype", "float32"],
    )
    trained, judged, measured = (call("head", *words) for words in calls)
    assert [status for status, _ in (trained, judged, measured)] == [0, 0, 0]
    assert "draft's top-1 probability" in trained[1]
    assert judged[1] == trained[1]
    assert "0.95" in measured[1]
    assert Path(result).exists()
    card = AcceptanceHead.load(folder, load_model(demo.DRAFT)).card
    assert card.recipe["train"]["note"] == "a test"
    assert len(card.curve) == 19
    with pytest.raises(ConfigError, match=r"card\.json that cannot be read"):
        call("head", "evaluate", tmp_path, recorded)


def test_shipped_head_fits_the_embedded_draft() -> None:
    draft = load_model(demo.DRAFT)
    card = AcceptanceHead.load(demo.HEAD, draft).card
    head, own = (card.metrics["reported"][name] for name in (HEAD, "draft's top-1 probability"))
    assert head["calibration_error"] <= 0.05 < own["calibration_error"]
    assert head["roc_area"] >= 0.75
    assert head["roc_area"] > own["roc_area"]
    assert len(card.curve) == 19
    assert AcceptanceHead.load(demo.HEAD, enlarge(draft, 256, 3)).card == card


def test_shipped_head_predicts_on_the_embedded_prompts(tmp_path: Path) -> None:
    recording = record_pair(tmp_path, limit=0, keep=0.5, max_new_tokens=48, batch=8)
    qualities = evaluate(
        AcceptanceHead.load(demo.HEAD, load_model(demo.DRAFT)), [recording]
    ).qualities
    assert qualities[HEAD].roc_area >= 0.75
    assert qualities[HEAD].calibration_error <= 0.08  # of a few hundred tokens
    assert qualities[HEAD].log_loss < qualities["draft's top-1 probability"].log_loss
