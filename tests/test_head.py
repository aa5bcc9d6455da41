"""Recording, training and judging acceptance heads, and measuring what thresholds cost."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from shared import Pair
from torch import Tensor
from typer.testing import CliRunner

from paceline import SamplingParams, demo
from paceline.acceptance import AcceptanceHead
from paceline.acceptance_card import INPUTS, draft_identity
from paceline.bench import enlarge
from paceline.cli import app
from paceline.errors import CapacityError, ConfigError
from paceline.head.calibrate import calibrate
from paceline.head.evaluate import HEAD, draw_judgement, evaluate, write_judgement
from paceline.head.metrics import calibration_error, reliability, roc_area
from paceline.head.record import RecordConfig, record, run_from, teacher_force
from paceline.head.recording import Recording, RecordingFolder, prompt_name, read_recording
from paceline.head.train import TrainConfig, split_prompts, train, weighted_loss
from paceline.loading import load_model

QUICK = RecordConfig(max_new_tokens=12, limit=6, batch=2, dtype="float32")


def quick(out: Path, **options: Any) -> Recording:
    """A recording of the embedded pair."""
    return record(dataclasses.replace(QUICK, out=out, **options))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the embedded pair on twelve prompts."""
    folder = tmp_path_factory.mktemp("recorded")
    quick(folder, limit=12, max_new_tokens=24, keep=0.5)
    return folder


def next_scores(model: Any, prefix: list[int], params: SamplingParams) -> Tensor:
    """Log-probabilities [vocab] after `prefix`, by one plain forward and the definition of the warping."""
    with torch.inference_mode():
        logits = model(torch.tensor([prefix])).logits[0, -1].double()
    if params.greedy:
        return torch.log_softmax(logits, -1)
    probs = (logits / params.temperature).softmax(-1)
    order = probs.argsort(descending=True)
    before = probs[order].cumsum(0) - probs[order]
    kept = torch.zeros_like(probs)
    kept[order[before < params.top_p]] = 1
    return torch.log(probs * kept / (probs * kept).sum())


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("keep", [0.0, 0.6])
def test_what_is_recorded_is_what_plain_forwards_say(pair: Pair, params: SamplingParams, keep: float) -> None:
    prompts = [pair.prompts[0][:7], pair.prompts[1][:12]]
    answers = [pair.answers[0][:9], pair.answers[1][:5]]
    drawn = []

    def spy(*arguments: Any) -> Any:
        drawn.append(run_from(*arguments))
        texts.append([list(text) for text in arguments[1]])
        return drawn[-1]

    texts: list[list[list[int]]] = []
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr("paceline.head.record.run_from", spy)
        got = teacher_force(pair.target, pair.draft, prompts, answers, params, keep, 1, torch.Generator().manual_seed(3))
    assert texts[0] == texts[1] == [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    at = 0
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        mixed = texts[2][row]
        mask = [int(place) == row for place in got["prompts"]]
        assert sum(mask) <= len(answer)
        for i in range(len(answer)):
            prefix = prompt + answer[:i]
            token = mixed[len(prefix)]
            draft, target = (next_scores(model, prefix, params) for model in (pair.draft, pair.target))
            if at >= len(got["labels"]) or int(got["prompts"][at]) != row:
                assert token == answer[i]
                continue
            with torch.inference_mode():
                states = pair.draft.model(torch.tensor([mixed[: len(prefix) + 1]])).last_hidden_state[0, -1]
            if not torch.allclose(states, got["hidden"][at], atol=1e-4):
                assert token == answer[i]  # kept, so not recorded
                continue
            label = float(target.argmax() == token) if params.greedy else float((target[token] - draft[token]).exp().clamp(max=1))
            assert float(got["labels"][at]) == pytest.approx(label, abs=1e-3)
            assert float(got["log_probs"][at]) == pytest.approx(float(draft[token]), abs=1e-3)
            assert float(got["entropies"][at]) == pytest.approx(float(torch.special.entr(draft.exp()).sum()), abs=1e-3)
            assert float(got["top_probs"][at]) == pytest.approx(float(draft.max().exp()), abs=1e-3)
            if params.greedy:
                assert token == int(draft.argmax())
            at += 1
    assert at == len(got["labels"])
    if keep == 0:
        assert at == sum(map(len, answers))


def test_the_drafted_tokens_follow_the_drafts_distribution(pair: Pair) -> None:
    params, prompt, answer = SamplingParams(temperature=1.0, top_p=0.6), pair.prompts[0][:6], pair.answers[0][:1]
    want = next_scores(pair.draft, prompt, params).exp()
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        got = teacher_force(pair.target, pair.draft, [prompt] * 400, [answer] * 400, params, 0.0, 1, generator)
    assert float(got["log_probs"].exp().min()) > 0
    for probability in want[want > 0.05].tolist():
        share = float((got["log_probs"].exp() - probability).abs().lt(1e-4).float().mean())
        assert share == pytest.approx(probability, abs=0.08)


def test_the_mixture_keeps_that_share_and_one_prompt_has_one_name(tmp_path: Path) -> None:
    made = quick(tmp_path / "half", keep=0.5, mixtures=4)
    whole = quick(tmp_path / "none", keep=0.0)
    assert len(made) == pytest.approx(2 * len(whole), rel=0.2)
    assert made.names == whole.names == [prompt_name(ids) for ids in made.prompt_ids]
    assert made.hidden.dtype == torch.bfloat16
    assert set(made.labels.tolist()) <= {0.0, 1.0}
    sampled = quick(tmp_path / "sampled", temperature=1.0, keep=0.0)
    assert bool(((sampled.labels > 0) & (sampled.labels < 1)).any())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_killed_recording_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    quick(whole, limit=10, temperature=0.7, seed=4)
    killed = tmp_path / "killed"
    words = [sys.executable, "-m", "paceline", "head", "record", "--out", str(killed), "--limit", "10", "-n", "12",
             "--batch", "2", "-t", "0.7", "--seed", "4", "--dtype", "float32"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    rng, kills = random.Random(0), 0
    for _ in range(3):
        before = len(list(killed.glob("shard-*.safetensors")))
        process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if len(list(killed.glob("shard-*.safetensors"))) > before:
                time.sleep(rng.random() * 0.05)
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        process.wait()
        found = contents(killed)
        assert all(found[name] == content for name, content in contents(whole).items() if name in found)
    assert kills
    (killed / "shard-00000.safetensorsabc.tmp").write_bytes(b"half")
    if not (killed / "shard-00004.safetensors").exists():
        with pytest.raises(ConfigError, match="of its 5 shards are there"):
            read_recording(killed)
    quick(killed, limit=10, temperature=0.7, seed=4)
    assert contents(killed) == contents(whole)


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    quick(tmp_path / "one", limit=2)
    with pytest.raises(ConfigError, match=r"begun with temperature 0\.0, and 0\.5 came"):
        quick(tmp_path / "one", limit=2, temperature=0.5)
    with pytest.raises(ConfigError, match=r"begun with (prompts|batches)"):
        quick(tmp_path / "one", limit=4)
    (tmp_path / "one" / "record.json").unlink()
    with pytest.raises(ConfigError, match=r"shards but no record\.json"):
        quick(tmp_path / "one", limit=2)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recording(tmp_path / "two")


def test_a_damaged_recording_names_the_file(tmp_path: Path) -> None:
    quick(tmp_path, limit=4)
    shard = tmp_path / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(ConfigError, match=r"shard-00001\.safetensors' cannot be read.*Delete that file"):
        read_recording(tmp_path)
    shard.unlink()
    assert len(quick(tmp_path, limit=4)) > 0
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ConfigError, match="Record anew"):
        read_recording(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 1.0}, "keep is 1.0; allowed is from 0 to below 1"),
        ({"batch": 0}, "batch is 0"),
        ({"mixtures": 0}, "mixtures is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"skip_every": 1}, "leaves no prompt"),
        ({"max_new_tokens": 4000}, "leaves -"),
        ({"model": str(demo.TARGET)}, "no draft model to record"),
    ],
)
def test_recordings_that_cannot_be_made(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, CapacityError), match=message):
        quick(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_every_and_skip_every_share_the_prompts_out(tmp_path: Path) -> None:
    every = quick(tmp_path / "every", limit=0, every=4, max_new_tokens=2)
    rest = quick(tmp_path / "rest", limit=0, skip_every=4, max_new_tokens=2)
    count = len(demo.PROMPTS.read_text().splitlines())
    assert len(every.names) + len(rest.names) == count
    assert not set(every.names) & set(rest.names)


def made_up(folder: Path, pair: Pair, count: int, each: int) -> Recording:
    """A recording whose labels are known: sigmoid(2 * first hidden value + log-probability + 1), drawn or as they are."""
    fingerprint, hidden_size = draft_identity(pair.draft)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count * each, hidden_size, generator=generator).bfloat16()
    log_probs = -torch.rand(count * each, generator=generator)
    chances = torch.sigmoid(2 * hidden[:, 0].float() + log_probs + 1)
    prompts = torch.arange(count, dtype=torch.int32).repeat_interleave(each)
    settings = {
        "target": "t", "draft": "d", "draft_fingerprint": fingerprint, "hidden_size": hidden_size, "vocab_size": 256,
        "batches": 1, "batch": 4, "max_new_tokens": 16, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0,
    }  # fmt: skip
    ids = [[3, place % 250 + 3, place // 250 + 3] for place in range(count)]
    places = {
        "hidden": hidden, "log_probs": log_probs, "entropies": torch.rand(count * each, generator=generator),
        "labels": torch.bernoulli(chances, generator=generator), "top_probs": log_probs.exp(), "prompts": prompts,
    }  # fmt: skip
    RecordingFolder(folder, settings, ids).write(0, places)
    return read_recording(folder)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("reject_weight", [1.0, 6.0])
def test_a_trained_head_predicts_and_is_calibrated(pair: Pair, tmp_path: Path, depth: int, reject_weight: float) -> None:
    made = made_up(tmp_path, pair, 60, 200)
    head = train([tmp_path], TrainConfig(depth=depth, reject_weight=reject_weight, epochs=3, lr=3e-3, batch=128))
    quality = evaluate(head, [made]).qualities
    truth = torch.sigmoid(2 * made.hidden[:, 0].float() + made.log_probs + 1)
    assert quality[HEAD].roc_area > roc_area(truth, made.labels) - 0.08
    assert quality[HEAD].calibration_error < 0.06  # of 1,200 draws
    assert quality[HEAD].log_loss < quality["draft's top-1 probability"].log_loss
    if reject_weight > 1:
        assert head.card.shift > 0.5  # the raw head is biased towards rejections
    first = head.first_chances(made.log_probs, made.entropies)
    assert float(first.mean()) == pytest.approx(float(made.labels.mean()), abs=0.02)
    assert roc_area(first, made.labels) > 0.5


def test_training_is_reproducible_and_the_card_says_how(pair: Pair, tmp_path: Path) -> None:
    made_up(tmp_path, pair, count=20, each=10)
    config = TrainConfig(depth=2, epochs=2)
    one, two, other = train([tmp_path], config), train([tmp_path], config), train([tmp_path], dataclasses.replace(config, seed=1))
    assert all(torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items())
    assert one.card == two.card
    assert not torch.equal(one.tensors["last.weight"], other.tensors["last.weight"])
    assert not torch.equal(one.tensors["blocks.0.weight"], one.tensors["blocks.1.weight"])
    assert (one.card.depth, one.card.inputs, one.card.recipe["train"]["reject_weight"]) == (2, INPUTS[1], 6.0)
    assert one.card.recipe["positions"] == 200
    assert 0 <= one.card.metrics["held_out"][HEAD]["calibration_error"] <= 1
    one.save(tmp_path / "head")
    assert AcceptanceHead.load(tmp_path / "head", pair.draft).card == one.card


def test_no_prompt_is_on_two_sides(pair: Pair, tmp_path: Path) -> None:
    first, second = made_up(tmp_path / "a", pair, 30, 5), made_up(tmp_path / "b", pair, 40, 5)
    head = train([tmp_path / "a", tmp_path / "b"], TrainConfig(depth=0, epochs=1))
    assert set(first.names) < set(second.names)
    training, dev, held_out = split_prompts(sorted(second.names), TrainConfig())
    assert not set(training) & set(dev) | set(training) & set(held_out) | set(dev) & set(held_out)
    assert head.card.seen_prompts == set(training) | set(dev)
    judgement = evaluate(head, [first, second])
    assert judgement.prompts == len(held_out)
    assert judgement.positions == 5 * sum(name in held_out for name in first.names + second.names)
    seen = second.of(set(training))
    assert len(seen) == 5 * len(training)
    with pytest.raises(ConfigError, match="trained on every prompt"):
        evaluate(head, [dataclasses.replace(second, names=[training[0]] * len(second.names))])


def test_training_and_judging_what_does_not_go_together(pair: Pair, tmp_path: Path) -> None:
    made_up(tmp_path / "a", pair, 30, 5)
    quick(tmp_path / "b", limit=2)
    with pytest.raises(ConfigError, match="different draft models"):
        train([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigError, match="2 prompts cannot be split"):
        train([tmp_path / "b"])
    with pytest.raises(ConfigError, match="no recording came"):
        train([])
    head = train([tmp_path / "a"], TrainConfig(depth=0, epochs=1))
    with pytest.raises(ConfigError, match="the recording is of draft"):
        evaluate(head, [read_recording(tmp_path / "b")])
    for options in ({"depth": 5}, {"reject_weight": 0.0}, {"lr": float("nan")}, {"epochs": 0}, {"dev": 0.9}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))} is"):
            TrainConfig(**options)


def test_the_loss_is_the_papers() -> None:
    logits, labels = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([1.0, 0.25, 0.0])
    chances = logits.sigmoid()
    total = -(labels * chances.log() + 6 * (1 - labels) * (1 - chances).log()).sum()
    assert float(weighted_loss(logits, labels, 6.0)) == pytest.approx(float(total / (6 * (1 - labels).sum() + labels.sum())))


def test_the_metrics_by_hand_and_by_brute_force() -> None:
    chances, labels = torch.tensor([0.05, 0.05, 0.62, 0.62, 0.99]), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    assert [one.count for one in reliability(chances, labels)] == [2, 2, 1]
    assert calibration_error(chances, labels) == pytest.approx((2 * 0.45 + 2 * 0.12 + 0.01) / 5, abs=1e-6)
    rng = random.Random(0)
    for _ in range(20):
        scores = [rng.randrange(5) / 5 for _ in range(12)]
        soft = [rng.random() for _ in range(12)]
        pairs = list(itertools.product(zip(scores, soft, strict=True), repeat=2))
        wins = sum(a * (1 - b) * ((x > y) + 0.5 * (x == y)) for (x, a), (y, b) in pairs)
        assert roc_area(torch.tensor(scores), torch.tensor(soft)) == pytest.approx(
            wins / (sum(soft) * sum(1 - one for one in soft)), abs=1e-5
        )
    assert roc_area(torch.tensor([0.1, 0.2]), torch.ones(2)) == 0.5


def test_a_judgement_is_drawn_and_written(pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = made_up(tmp_path / "a", pair, 30, 5)
    judgement = evaluate(train([tmp_path / "a"], TrainConfig(depth=0, epochs=1)), [made])
    draw_judgement(judgement, tmp_path / "plot.png")
    write_judgement(judgement, tmp_path / "result.json")
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"
    assert '"roc_area"' in (tmp_path / "result.json").read_text()


def test_the_curve_is_measured_on_development_prompts(pair: Pair, tmp_path: Path) -> None:
    made = made_up(tmp_path, pair, 20, 20)
    head = train([tmp_path], TrainConfig(depth=0, epochs=2))
    with pytest.raises(ConfigError, match="no curve"):
        head.threshold(1.0, 0.1)
    curved = calibrate(head, [made], pair.target, pair.draft, thresholds=(0.1, 0.5, 0.95))
    curve = curved.card.curve
    assert [point.threshold for point in curve] == [0.1, 0.5, 0.95]
    assert curve[0].verification_rate >= curve[-1].verification_rate
    assert curve[0].discard_rate <= curve[-1].discard_rate
    assert all(0 < point.verification_rate <= 1 + 1 / 8 and point.discard_rate >= 0 for point in curve)
    assert curved.threshold(1.0, 0.1) in (0.1, 0.5, 0.95)
    with pytest.raises(ConfigError, match="no recording has development prompts"):
        calibrate(head, [dataclasses.replace(made, names=["00000000"] * 20)], pair.target, pair.draft)


def test_the_commands(recorded: Path, tmp_path: Path) -> None:
    folder, result = str(tmp_path / "head"), str(tmp_path / "judged.json")
    calls = (
        ["train", str(recorded), "--out", folder, "--depth", "1", "--epochs", "2", "--note", "a test"],
        ["evaluate", folder, str(recorded), "--json", result],
        ["calibrate", folder, str(recorded), "--limit", "1", "--dtype", "float32"],
    )
    trained, judged, measured = (CliRunner().invoke(app, ["head", *words], catch_exceptions=False) for words in calls)
    assert [done.exit_code for done in (trained, judged, measured)] == [0, 0, 0]
    assert "draft's top-1 probability" in trained.stdout
    assert judged.stdout == trained.stdout
    assert "0.95" in measured.stdout
    assert Path(result).exists()
    card = AcceptanceHead.load(folder, load_model(demo.DRAFT)).card
    assert card.recipe["train"]["note"] == "a test"
    assert len(card.curve) == 19
    with pytest.raises(ConfigError, match=r"card\.json cannot be read"):
        CliRunner().invoke(app, ["head", "evaluate", str(tmp_path), str(recorded)], catch_exceptions=False)


def test_the_shipped_head_goes_with_the_embedded_draft() -> None:
    draft = load_model(demo.DRAFT)
    card = AcceptanceHead.load(demo.HEAD, draft).card
    head, own = (card.metrics["reported"][name] for name in (HEAD, "draft's top-1 probability"))
    assert head["calibration_error"] <= 0.05 < own["calibration_error"]
    assert head["roc_area"] >= 0.75
    assert head["roc_area"] > own["roc_area"]
    assert len(card.curve) == 19
    assert AcceptanceHead.load(demo.HEAD, enlarge(draft, 256, 3)).card == card


def test_the_shipped_head_predicts_on_the_embedded_prompts(tmp_path: Path) -> None:
    made = quick(tmp_path, limit=0, keep=0.5, max_new_tokens=48, batch=8)
    qualities = evaluate(AcceptanceHead.load(demo.HEAD, load_model(demo.DRAFT)), [made]).qualities
    assert qualities[HEAD].roc_area >= 0.75
    assert qualities[HEAD].calibration_error <= 0.08  # of some hundred tokens
    assert qualities[HEAD].log_loss < qualities["draft's top-1 probability"].log_loss


def test_the_shards_hold_no_more_than_tensors(recorded: Path) -> None:
    assert set(load_file(recorded / "shard-00000.safetensors")) == {
        "hidden", "log_probs", "entropies", "labels", "top_probs", "prompts",
    }  # fmt: skip
