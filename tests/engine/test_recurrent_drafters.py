"""Test that drafters, datastores and trained heads keep a recurrent target's answers."""

from __future__ import annotations

import copy
import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from paceline import LLM
from paceline.draft_head.trained import Card, save
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch
from paceline.model.loading import load_draft
from paceline.training.draft.folder import DraftFolder
from paceline.training.draft.prepare import DraftData
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.train import DraftTrainer
from paceline.training.draft_head.prepare import DraftHeadData, states_of
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.training.draft_head.train import DraftHeadTrainer
from paceline.training.text_chunks import TextChunk
from tests.engine.test_recurrent import PARAMS, known_answers, make
from tests.support.shared import SPECS, Pair

FAST = ("rest", "sssd", "ouroboros")
TRAINING = DraftTraining(
    hidden=64, layers=1, minutes=0.1, batch=256, context=64, held_out=4, validations=2, coverage=1.0
)


@functools.cache
def hybrid(name: str) -> Pair:
    """Return a hybrid target, its copy as draft model, and the answers of `generate`."""
    known = known_answers(name, 4)
    draft = copy.deepcopy(make(name))
    return Pair(make(name), draft, [list(prompt) for prompt in known], [*known.values()])


def chunks_of(pair: Pair) -> list[TextChunk]:
    return [
        TextChunk(np.array([*prompt, *answer], dtype=np.int32), len(prompt))
        for prompt, answer in zip(pair.prompts, pair.answers, strict=True)
    ]


@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, marks=() if spec in FAST else pytest.mark.slow) for spec in SPECS],
)
def test_drafters_keep_the_answers_of_generate(spec: str) -> None:
    pair = hybrid("qwen3_5")
    outs = pair.engine(spec, max_batch=3).generate(pair.prompts, PARAMS)
    assert [out.token_ids for out in outs] == pair.answers


@pytest.mark.parametrize("name", ["qwen3_5", pytest.param("lfm2", marks=pytest.mark.slow)])
def test_draft_head_trains_on_hybrid_states(name: str, tmp_path: Path) -> None:
    pair, path = hybrid(name), tmp_path / "head.safetensors"
    model = CachedLM(pair.target)
    states = states_of(model, chunks_of(pair) * 4)
    settings = DraftHeadTraining(neurons=32, kept=64, epochs=3, batch=32, lr=3e-3)
    data = DraftHeadData(model, states, states, Card("hybrid", "", model.vocab_size))
    trainer = DraftHeadTrainer(data, settings)
    trainer.run()
    assert trainer.reports[-1].first[0] > trainer.reports[0].first[0]
    sketch = Sketch.from_model(pair.target).encode()
    save(path, trainer.weights(), Card("hybrid", sketch, model.vocab_size, {"seed": 0}))
    llm = LLM(pair.target, f"auto:draft_head={path},budget=false", max_batch=3)
    outs = llm.generate(pair.prompts, PARAMS)
    assert [out.token_ids for out in outs] == pair.answers
    assert sum(out.stats.accepted_tokens for out in outs) > 0


@pytest.mark.parametrize("name", ["qwen3_5", pytest.param("lfm2", marks=pytest.mark.slow)])
def test_draft_model_trains_on_hybrid_states(name: str, tmp_path: Path) -> None:
    pair = hybrid(name)
    ticks = itertools.count(0.0, 0.25)  # seconds: every training step takes equally long
    folder = DraftFolder(tmp_path, {"seed": 0}, {"target": "hybrid"})
    data = DraftData.split(chunks_of(pair) * 4, [], TRAINING)
    data = data.with_states(CachedLM(pair.target), TRAINING)
    DraftTrainer(pair.target, data, TRAINING, folder, lambda: next(ticks)).run()
    draft = load_draft(tmp_path, "float32")
    llm = LLM(pair.target, "draft_model:max_draft_tokens=4", draft, max_batch=3)
    outs = llm.generate(pair.prompts, PARAMS)
    assert [out.token_ids for out in outs] == pair.answers
    assert sum(out.stats.accepted_tokens for out in outs) > 0
