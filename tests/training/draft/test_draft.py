"""Test training and evaluation of draft models, checkpoints and refused inputs."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import model_identity
from paceline.model.loading import draft_lm, load_draft
from paceline.replay.recorder import RecordingPrompt, RecordOptions, record_answers
from paceline.training.draft.batches import Batches, collated
from paceline.training.draft.chains import expected_chains
from paceline.training.draft.evaluate import agreements, evaluate
from paceline.training.draft.folder import STATE, DraftFolder
from paceline.training.draft.independent_student import first_model, principal
from paceline.training.draft.loss import distillation_loss
from paceline.training.draft.prepare import DraftData
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.train import DraftTrainer, reduced_vocabulary
from paceline.training.loop import TrainingReport
from paceline.training.optimisers import Muon, orthogonal
from paceline.training.text_chunks import TextChunk, recorded_chunks, shortened
from tests.support.shared import COUNT, Pair

QUICK = DraftTraining(
    kind="independent",
    hidden=32,
    layers=1,
    minutes=0.05,
    batch=256,
    context=64,
    held_out=4,
    validations=3,
)


@pytest.fixture(scope="module")
def answers_file(pair: Pair, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of the target's answers, with its top tokens."""
    path = tmp_path_factory.mktemp("recorded") / "answers.jsonl"
    llm = LLM(pair.target, tokenizer=tokenizer)
    questions = [
        RecordingPrompt(str(number), "even" if number % 2 else "odd", prompt)
        for number, prompt in enumerate(pair.prompts)
    ]
    record_answers(path, llm, questions, SamplingParams(max_new_tokens=COUNT), RecordOptions(top=4))
    return path


@pytest.fixture(scope="module")
def answers(answers_file: Path, pair: Pair) -> list[TextChunk]:
    return recorded_chunks([answers_file], model_identity(pair.target)[0])


def accepted_per_chain(hits: list[bool], length: int) -> list[int]:
    """Return the accepted tokens of each chain, drafted one after the other."""
    accepted, token = [], 1
    while token < len(hits):
        count = len(list(itertools.takewhile(bool, hits[token : token + length])))
        accepted.append(count)
        token += count + 1
    return accepted


@pytest.mark.parametrize("length", [1, 4])
def test_chains_of_greedy_answers_equal_decoding(length: int) -> None:
    random = np.random.default_rng(0)
    answers = [random.random(count) < 0.7 for count in (0, 1, 2, 9, 40)]
    chains = expected_chains([answer.astype(float) for answer in answers], length)
    accepted = [
        count for answer in answers for count in accepted_per_chain(answer.tolist(), length)
    ]
    assert chains.chains == len(accepted)
    assert chains.per_chain == pytest.approx(np.mean(accepted))
    assert chains.accepted == tuple(
        sum(count > position for count in accepted) for position in range(length)
    )


def test_chains_of_sampled_answers_average_all_outcomes() -> None:
    chances = [1.0, 0.3, 0.9, 0.5, 0.2]
    expected, chains = 0.0, 0.0
    for hits in itertools.product([False, True], repeat=len(chances)):
        share = float(
            np.prod(
                [chance if hit else 1 - chance for chance, hit in zip(chances, hits, strict=True)]
            )
        )
        accepted = accepted_per_chain(list(hits), 2)
        expected, chains = expected + share * sum(accepted), chains + share * len(accepted)
    result = expected_chains([chances], 2)
    assert result.chains == pytest.approx(chains)
    assert sum(result.accepted) == pytest.approx(expected)


def test_expected_chains_equal_the_drafters(pair: Pair, answers: list[TextChunk]) -> None:
    """Compare the evaluation without decoding with decoding."""
    outs = LLM(pair.target, "draft_model:max_draft_tokens=4", pair.draft).generate(
        pair.prompts, SamplingParams(max_new_tokens=COUNT)
    )
    accepted = sum(out.stats.accepted_tokens for out in outs)
    assert sum(expected_chains(agreements(pair.draft, answers), 4).accepted) == pytest.approx(
        accepted
    )


def test_loss_and_gradients_equal_autograd() -> None:
    torch.manual_seed(0)
    targets = torch.stack([torch.randperm(20)[:3] for _ in range(600)])
    probs = torch.rand(600, 3).softmax(-1)
    hidden, weight = torch.randn(600, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    loss = distillation_loss(hidden, weight, targets, probs)
    expected = -(probs * (hidden @ weight.T).log_softmax(-1).gather(1, targets)).sum(1).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    gradients, expected_gradients = (
        torch.autograd.grad(3 * value, (hidden, weight)) for value in (loss, expected)
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 8, 32), (3, 32, 8), (1, 16, 16)])
def test_muon_steps_along_orthogonal_matrices(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert 0.3 < float(singular.min()) < float(singular.max()) < 1.3
    weight = torch.randn(shape[1:], requires_grad=True)
    wanted = torch.randn(shape[1:])
    optimiser = Muon([weight], lr=0.2)
    before = float((weight - wanted).norm().detach())
    for _ in range(30):
        optimiser.zero_grad()
        ((weight - wanted) ** 2).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert float((weight - wanted).norm().detach()) < 0.6 * before


def test_first_embedding_is_the_targets_projected(pair: Pair) -> None:
    rows = pair.target.get_input_embeddings().weight.detach()
    projected = principal(rows, 16)
    best = torch.linalg.svdvals(rows)[:16]
    torch.testing.assert_close(torch.linalg.svdvals(projected), best, rtol=1e-3, atol=1e-3)
    model = first_model(pair.target, DraftTraining(kind="independent", hidden=64, layers=2))
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.vocab_size == pair.target.config.vocab_size


def test_batches_contain_each_chunk_once_an_epoch(
    answers: list[TextChunk],
) -> None:
    batches = Batches(answers, 200, 3)
    batches_used = list(itertools.islice(batches.after(0), 40))
    again = list(itertools.islice(batches.after(25), 15))
    assert all(
        chunk is other
        for pair in zip(batches_used[25:], again, strict=True)
        for chunk, other in zip(*pair, strict=True)
    )
    assert len(answers) in np.cumsum([len(batch) for batch in batches_used])


def test_batch_contains_the_target_distribution(answers: list[TextChunk]) -> None:
    vocabulary_index = np.full(256, -1)
    token_ids = np.unique(np.concatenate([answer.token_ids[answer.first :] for answer in answers]))
    vocabulary_index[token_ids] = np.arange(len(token_ids))
    batch = collated(answers[:3], vocabulary_index)
    entry = 0
    for row, chunk in enumerate(answers[:3]):
        for position in range(chunk.first, len(chunk)):
            assert int(batch.positions[entry]) == row * batch.token_ids.shape[1] + position - 1
            best = int(batch.probs[entry].argmax())
            assert (
                token_ids[int(batch.targets[entry, best])] == chunk.token_ids[position]
            )  # greedy: the target chose the likeliest token
            entry += 1
    torch.testing.assert_close(batch.probs.sum(1), torch.ones(entry))


def test_long_chunk_is_cut_at_its_start(answers: list[TextChunk]) -> None:
    longest = max(answers, key=len)
    cut = shortened(longest, len(longest) - 2)
    assert cut.token_ids.tolist() == longest.token_ids.tolist()[2:]
    tiny = shortened(longest, 8)
    assert (len(tiny), tiny.first) == (8, 1)
    assert tiny.top is not None
    assert len(tiny.top.token_ids) == 7


def test_reduced_vocabulary_is_the_smallest_that_covers(answers: list[TextChunk]) -> None:
    data = DraftData.split(answers, [], QUICK)
    token_ids = reduced_vocabulary(data, 256, 0.8)
    predicted = np.concatenate([answer.token_ids[answer.first :] for answer in data.answers])
    assert np.isin(predicted, token_ids).mean() >= 0.8
    assert len(token_ids) % WIDTH == 0
    fewer = np.argsort(-np.bincount(predicted, minlength=256), kind="stable")[
        : len(token_ids) - WIDTH
    ]
    assert np.isin(predicted, fewer).mean() < 0.8
    assert reduced_vocabulary(data, 256, 1.0).tolist() == list(range(256))


def trained(pair: Pair, answers: list[TextChunk], out: Path, config: DraftTraining) -> DraftFolder:
    folder = DraftFolder(out, {"hidden": config.hidden, "length": config.length}, {"target": "t"})
    # seconds: every step takes equally long, whatever the machine's load
    ticks = itertools.count(0.0, 0.05)
    DraftTrainer(
        pair.target, DraftData.split(answers, [], config), config, folder, lambda: next(ticks)
    ).run()
    return folder


def counting(count: int) -> list[TextChunk]:
    """Return texts in which every token determines the next."""
    starts = np.random.default_rng(1).integers(3, 203, count)
    return [
        TextChunk(((start + 7 * np.arange(30)) % 200 + 3).astype(np.int32), 4) for start in starts
    ]


def test_trained_draft_improves_and_is_lossless(pair: Pair, tmp_path: Path) -> None:
    config = DraftTraining(
        kind="independent",
        hidden=64,
        layers=1,
        minutes=0.25,
        batch=512,
        context=64,
        held_out=4,
        lr=0.02,
        coverage=0.95,
    )
    record = trained(pair, counting(80), tmp_path, config).finish()
    assert record.curve[-1].losses["answers"] < record.curve[0].losses["answers"]
    assert expected_chains(
        agreements(load_draft(tmp_path), counting(100)[80:]), 4
    ).agreement == pytest.approx(record.best.agreement, abs=0.15)
    assert record.best.agreement > 0.7  # 0.005 by chance
    outs = LLM(pair.target, "draft_model:max_draft_tokens=4", tmp_path).generate(
        pair.prompts, SamplingParams(max_new_tokens=COUNT)
    )
    assert [out.token_ids for out in outs] == pair.answers
    assert sum(out.stats.accepted_tokens for out in outs) > 0


def test_interrupted_training_resumes(pair: Pair, answers: list[TextChunk], tmp_path: Path) -> None:
    folder = DraftFolder(tmp_path, {"seed": 0}, {})
    data = DraftData.split(answers, [], QUICK)

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    first = DraftTrainer(pair.target, data, QUICK, folder)
    with pytest.raises(KeyboardInterrupt):
        first.run(TrainingReport(interrupt))
    assert (tmp_path / STATE).exists()
    assert not folder.finished
    second = DraftTrainer(pair.target, data, QUICK, DraftFolder(tmp_path, {"seed": 0}, {}))
    assert (second.progress.steps, second.progress.batches) == (
        first.progress.steps,
        first.progress.batches,
    )
    for first_weights, other_weights in zip(
        first.model.parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(first_weights, other_weights)
    second.run()
    assert second.progress.steps > first.progress.steps
    folder.finish()
    assert folder.finished
    with pytest.raises(ConfigError, match="seed: got 1; expected 0"):
        DraftFolder(tmp_path, {"seed": 1}, {})


def test_ctrl_c_completes_the_step_and_stores_the_state(
    pair: Pair, answers: list[TextChunk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(QUICK, minutes=60.0)
    trainer = DraftTrainer(
        pair.target, DraftData.split(answers, [], config), config, DraftFolder(tmp_path, {}, {})
    )
    next_loss = trainer.next_loss

    def interrupt() -> Any:
        if trainer.progress.steps == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return next_loss()

    monkeypatch.setattr(trainer, "next_loss", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    resumed = DraftTrainer(
        pair.target, DraftData.split(answers, [], config), config, DraftFolder(tmp_path, {}, {})
    )
    assert resumed.progress == trainer.progress
    assert resumed.progress.steps == 3
    for first_weights, other_weights in zip(
        trainer.model.parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(first_weights, other_weights)
    for steps in (trainer, resumed):
        steps.progress.seconds = 0.0
        steps.step()
    for first_weights, other_weights in zip(
        trainer.model.parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(first_weights, other_weights)


def test_steps_are_reproducible(pair: Pair, answers: list[TextChunk], tmp_path: Path) -> None:
    data = DraftData.split(answers, [], QUICK)
    models = []
    for name in ("one", "other"):
        trainer = DraftTrainer(pair.target, data, QUICK, DraftFolder(tmp_path / name, {}, {}))
        for _ in range(3):
            trainer.step()
        models.append(trainer.model)
    for first_weights, other_weights in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(first_weights, other_weights)


def test_damaged_checkpoint_is_refused(
    pair: Pair, answers: list[TextChunk], tmp_path: Path
) -> None:
    trained(pair, answers, tmp_path, QUICK)
    content = (tmp_path / STATE).read_bytes()
    (tmp_path / STATE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match="is damaged"):
        DraftFolder(tmp_path, {"hidden": QUICK.hidden, "length": QUICK.length}, {})


def test_diverging_learning_rate_is_refused(
    pair: Pair, answers: list[TextChunk], tmp_path: Path
) -> None:
    config = dataclasses.replace(QUICK, minutes=0.3, lr=1e30)
    with pytest.raises(ConfigError, match=r"lr: got .*not finite"):
        trained(pair, answers, tmp_path, config)


def test_evaluation_computes_the_gain_of_drafting(pair: Pair, answers: list[TextChunk]) -> None:
    judgement = evaluate(draft_lm(CachedLM(pair.draft)), CachedLM(pair.target), answers, 4)
    assert set(judgement.chains) == {"even", "odd", "all"}
    assert judgement.chains["all"].places == sum(
        entry.places for name, entry in judgement.chains.items() if name != "all"
    )
    gain = judgement.gains[3]
    step = judgement.target_seconds[4] + 4 * judgement.draft_seconds
    assert gain.speed == pytest.approx((1 + gain.accepted) * judgement.target_seconds[0] / step)
    assert gain.accepted == pytest.approx(judgement.chains["all"].per_chain)
    assert judgement.best.speed == max(entry.speed for entry in judgement.gains)


def test_answers_of_another_model_are_refused(pair: Pair, answers_file: Path) -> None:
    with pytest.raises(ConfigError, match="expected those of the target"):
        recorded_chunks([answers_file], model_identity(pair.draft)[0])


def test_too_few_answers_are_refused(answers: list[TextChunk]) -> None:
    with pytest.raises(ConfigError, match="got 3 answers"):
        DraftData.split(answers[:3], [], QUICK)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hidden", 40),
        ("minutes", 0.0),
        ("coverage", 1.5),
        ("layers", -1),
        ("held_out", 1),
        ("lr", float("nan")),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"draft train: {option}"):
        DraftTraining(**{option: value})
