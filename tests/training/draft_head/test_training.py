"""Test training, storage and use of draft heads that read hidden states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from paceline import LLM, SamplingParams, demo
from paceline.draft_head.find import find_draft_head
from paceline.draft_head.guessing import DraftHead
from paceline.draft_head.trained import Card, load, read, save
from paceline.draft_head.weights import Weights
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch
from paceline.training.draft_head.prepare import DraftHeadData, States, states_of
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.training.draft_head.train import DraftHeadReport, DraftHeadTrainer
from paceline.training.text_chunks import TextChunk
from tests.support.cli import call
from tests.support.models import make, with_new_weights
from tests.support.shared import COUNT, Pair

SETTINGS = DraftHeadTraining(neurons=32, kept=64, epochs=3, batch=32, lr=3e-3)


def answers_of(pair: Pair) -> list[TextChunk]:
    return [
        TextChunk(torch.tensor([*prompt, *answer], dtype=torch.int32).numpy(), len(prompt))
        for prompt, answer in zip(pair.prompts, pair.answers, strict=True)
    ]


def data_of(model: CachedLM, states: States) -> DraftHeadData:
    """Return training data that is also its validation data."""
    return DraftHeadData(model, states, states, Card("pair", "", model.vocab_size))


@pytest.fixture(scope="module")
def trained(pair: Pair) -> tuple[Weights, list[DraftHeadReport]]:
    model = CachedLM(pair.target)
    answers = states_of(model, answers_of(pair))
    trainer = DraftHeadTrainer(data_of(model, answers), SETTINGS)
    trainer.run()
    return trainer.weights(), trainer.reports


@pytest.fixture
def file(pair: Pair, trained: tuple[Weights, list[DraftHeadReport]], tmp_path: Path) -> Path:
    path = tmp_path / "draft_head.safetensors"
    save(
        path,
        trained[0],
        Card(
            "pair",
            Sketch.from_model(pair.target).encode(),
            pair.target.config.vocab_size,
            {"seed": 0},
        ),
    )
    return path


def test_trained_head_beats_the_linear_map(trained: tuple[Weights, list[DraftHeadReport]]) -> None:
    """Compare the accuracy of the first guess at both levels."""
    reports = trained[1]
    assert len(reports) == 1 + SETTINGS.epochs
    assert reports[-1].first[0] > reports[0].first[0]
    assert reports[-1].first[1] > reports[0].first[1]
    assert all(
        first <= eight for first, eight in zip(reports[-1].first, reports[-1].among, strict=True)
    )


def test_positions_have_two_more_tokens_in_their_chunk(pair: Pair) -> None:
    states = states_of(
        CachedLM(pair.target), [TextChunk(torch.arange(1, 7, dtype=torch.int32).numpy(), 3)] * 2
    )
    assert states.positions.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert states.answers.tolist() == [2, 3, 8, 9]
    assert len(states.states) == len(states.token_ids) == 12


def test_seed_determines_the_weights(pair: Pair) -> None:
    model = CachedLM(pair.target)
    answers = states_of(model, answers_of(pair)[:4])
    weights = []
    for _ in range(2):
        trainer = DraftHeadTrainer(data_of(model, answers), replace(SETTINGS, epochs=1, batch=8))
        trainer.run()
        weights.append(trainer.weights())
    assert torch.equal(weights[0].first, weights[1].first)
    assert torch.equal(weights[0].outer, weights[1].outer)


def test_tree_of_several_levels(pair: Pair, trained: tuple[Weights, list[DraftHeadReport]]) -> None:
    """Check that each level uses the states of the level before, fewer in a batch."""
    model = CachedLM(pair.target)
    draft_head = DraftHead(model, trained[0])
    states = torch.randn(
        9, pair.target.config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    (tree,) = draft_head.predict(states[:1], [5])
    assert len(tree) == 16 + 4 * 8 + 4 * 8
    assert set(tree.token_ids) <= set(trained[0].token_ids.tolist())
    with torch.inference_mode():
        first = draft_head.next_states(states[:1], torch.tensor([5]))
        second = draft_head.next_states(first, torch.tensor(tree.token_ids[:1]))
        expected = draft_head.guess(second, 8)
    children = [node for node, parent in enumerate(tree.parents) if parent == 0]
    assert [tree.token_ids[node] for node in children] == expected[0][0].tolist()
    assert [tree.confidence[node] for node in children] == pytest.approx(expected[1][0].tolist())  # type: ignore[index]
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert [len(draft) for draft in draft_head.predict(states[:3], [5, 6, 7])] == [
        16 + 2 * 8 + 2 * 8
    ] * 3
    assert [len(draft) for draft in draft_head.predict(states, [5] * 9)] == [16] * 9


def test_saved_head_is_loaded(
    pair: Pair, file: Path, trained: tuple[Weights, list[DraftHeadReport]]
) -> None:
    weights, card = read(file)
    assert torch.allclose(weights.first.float(), trained[0].first, rtol=1e-2)
    assert torch.equal(weights.token_ids, trained[0].token_ids)
    assert card.target == "pair"
    assert weights.levels == 3
    assert torch.equal(load(file, CachedLM(pair.target)).first, weights.first)


@pytest.mark.parametrize("damage", ["cut", "one bit", "no kind", "another version", "a text"])
def test_damaged_files_are_refused(damage: str, file: Path) -> None:
    content = bytearray(file.read_bytes())
    if damage == "cut":
        content = content[:-40]
    elif damage == "one bit":
        content[-7] ^= 1
    elif damage == "a text":
        content = bytearray(b"no weights at all")
    else:
        tensors = safetensors.torch.load(bytes(content))
        header = (
            {"kind": "paceline draft head", "version": "9"} if damage == "another version" else {}
        )
        content = bytearray(safetensors.torch.save(tensors, header))
    file.write_bytes(bytes(content))
    with pytest.raises(ConfigError, match="draft-head train"):
        read(file)


def test_head_of_another_model_is_refused(pair: Pair, file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its embedding is too different"):
        find_draft_head(CachedLM(with_new_weights(pair.target)), file)
    with pytest.raises(ConfigError, match="cannot be read"):
        LLM(pair.target, f"auto:draft_head={tmp_path / 'none'}")


def test_enlarged_model_uses_the_same_head(
    pair: Pair, trained: tuple[Weights, list[DraftHeadReport]]
) -> None:
    """Check that dimensions that are always zero change no guess."""
    weights, old = trained[0], pair.target.config.hidden_size
    wide = weights.widened(old + 16, old + 8)
    assert wide.first.shape == (old + 16 + SETTINGS.neurons, 2 * old + 24)
    inputs = torch.randn(3, 2 * old)
    before = inputs @ weights.first.T + weights.bias
    after = (
        torch.cat((inputs[:, :old], torch.zeros(3, 16), inputs[:, old:], torch.zeros(3, 8)), dim=1)
        @ wide.first.T
        + wide.bias
    )
    torch.testing.assert_close(after[:, :old], before[:, :old])
    torch.testing.assert_close(after[:, old + 16 :], before[:, old:])
    assert not after[:, old : old + 16].any()
    assert wide.outer.shape == (old + 16, SETTINGS.neurons)


def test_head_saves_forwards_and_keeps_answers(pair: Pair, file: Path) -> None:
    params = SamplingParams(max_new_tokens=COUNT)
    forwards = []
    for draft_head in ("false", str(file)):
        llm = LLM(
            pair.target, f"auto:max_nodes=8,budget=false,draft_head={draft_head}", max_batch=3
        )
        answers = llm.generate(pair.prompts, params)
        assert [answer.token_ids for answer in answers] == [
            expected[:COUNT] for expected in pair.answers
        ]
        forwards.append(sum(answer.stats.target_forwards for answer in answers))
    assert forwards[1] < forwards[0]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded, out = tmp_path / "answers.jsonl", tmp_path / "draft_head.safetensors"
    call(
        "record",
        "demo",
        "--dtype",
        "float32",
        "--limit",
        "8",
        "-n",
        "24",
        "--out",
        str(recorded),
    )
    train = [
        "draft-head",
        "train",
        "demo",
        "--recording",
        str(recorded),
        "--neurons",
        "16",
        "--batch",
        "16",
        "--held-out",
        "4",
    ]
    assert call(*train, "--epochs", "2", "--dtype", "float32", "--out", str(out))[0] == 0
    output = capsys.readouterr().err
    assert "min, step 0: " in output
    assert f"wrote {out}" in output
    card = read(out)[1]
    assert card.about["recordings"] == ["answers.jsonl"]
    assert card.judged["epoch"] in (1, 2)
    answer = LLM(demo.TARGET, f"auto:draft_head={out}").generate(
        ["Name three rivers."], SamplingParams(max_new_tokens=8)
    )
    assert len(answer[0].token_ids) == 8
    with pytest.raises(SystemExit):
        call(*train, "--epochs", "0", "--out", str(out))
    assert "epochs: got 0" in capsys.readouterr().err


def test_too_little_data_is_refused(pair: Pair) -> None:
    model = CachedLM(make("llama"))
    few = states_of(model, [TextChunk(torch.arange(1, 7, dtype=torch.int32).numpy(), 2)])
    with pytest.raises(ConfigError, match="expected at least 32"):
        DraftHeadTrainer(data_of(model, few), SETTINGS)
