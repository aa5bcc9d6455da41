"""Test that training on another device uses no CPU tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline import SamplingParams
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import attach, layers_read
from paceline.training.acceptance_head import along
from paceline.training.acceptance_head.along import draft_along
from paceline.training.acceptance_head.teacher_forcing import draft_and_label
from paceline.training.draft.eagle_student import EagleStudent
from paceline.training.draft.evaluate import guesses_agree
from paceline.training.draft.independent_student import IndependentStudent, first_model
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.train import Student
from paceline.training.optimisers import model_optimisers
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk
from tests.support.shared import Pair
from tests.support.simulated_cuda import CUDA, moved, simulated_cuda

CONFIG = DraftTraining(hidden=64, layers=1, coverage=1.0, minutes=1)
KEPT = np.arange(256)


@pytest.fixture(scope="module")
def chunks(pair: Pair) -> list[TextChunk]:
    """Return answers of the pair with the target's states."""
    both = list(zip(pair.prompts[:3], pair.answers[:3], strict=True))
    texts = [
        TextChunk(np.array(prompt + answer, dtype=np.int32), len(prompt)) for prompt, answer in both
    ]
    states = read_states(CachedLM(pair.target), texts, (1,))
    return [
        dataclasses.replace(text, states=state) for text, state in zip(texts, states, strict=True)
    ]


def losses_of(student: Student, chunks: Sequence[TextChunk]) -> list[float]:
    """Return the losses of three steps, and the agreement afterwards."""
    (muon, _), losses = model_optimisers(student.model, 1e-2, 1e-2), []
    for number in range(3):
        loss = student.loss(chunks, number)
        loss.backward()  # type: ignore[no-untyped-call]
        muon.step()
        losses.append(loss.item())
    return [*losses, student.acceptance(chunks, 3).agreement]


def test_draft_that_reads_states_trains_on_device(pair: Pair, chunks: list[TextChunk]) -> None:
    on_cpu = losses_of(EagleStudent(pair.target, "pair", CONFIG, KEPT, chunks), chunks)
    target = moved(copy.deepcopy(pair.target))
    with simulated_cuda():
        student = EagleStudent(target, "pair", CONFIG, KEPT, chunks)
        assert student.model.device == CUDA
        on_device = losses_of(student, chunks)
    assert on_device == pytest.approx(on_cpu, rel=1e-3)


def test_independent_draft_trains_on_device(
    pair: Pair, chunks: list[TextChunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CONFIG, kind="independent")
    on_cpu = losses_of(IndependentStudent(pair.target, config, KEPT), chunks)
    target, first = moved(copy.deepcopy(pair.target)), first_model(pair.target, config)
    # Simulated devices break ties, which `.to` keeps on real ones.
    monkeypatch.setattr(
        "paceline.training.draft.independent_student.first_model",
        lambda target, config: moved(first),
    )
    with simulated_cuda():
        on_device = losses_of(IndependentStudent(target, config, KEPT), chunks)
    assert on_device == pytest.approx(on_cpu, rel=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_head_is_recorded_on_device(
    pair: Pair, chunks: list[TextChunk], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check with given target states; GPU tests cover how they are read."""
    draft = EagleStudent(pair.target, "pair", CONFIG, KEPT, chunks).model
    states = chunks[0].states
    monkeypatch.setattr(along, "read_states", lambda target, texts, layers: iter([states]))

    def record_columns(target: Any, drafting: Any) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)

        def label(draft_scores: Tensor, target_choice: Tensor) -> list[Tensor]:
            return draft_and_label(draft_scores, target_choice, temperature == 0, generator)

        model = CachedLM(target)
        params = SamplingParams(8, temperature=temperature)
        return [
            column.cpu()
            for column in draft_along(
                model, drafting, pair.prompts[0], pair.answers[0], params, 2, label
            )
        ]

    on_cpu = record_columns(pair.target, draft)
    target = moved(copy.deepcopy(pair.target))
    with simulated_cuda():
        drafting = copy.deepcopy(draft)
        drafting.get_input_embeddings().table = drafting.get_output_embeddings().kept = None
        drafting = moved(drafting)
        attach(drafting, target)
        on_device = record_columns(target, drafting)
        agreed = guesses_agree(drafting, chunks[0], 2)
    torch.testing.assert_close(on_device, on_cpu, rtol=1e-3, atol=1e-4)
    assert layers_read(draft) == (1,)
    assert (agreed == guesses_agree(draft, chunks[0], 2)).mean() > 0.95
