"""Check that every decoder type of the installed transformers is exact or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from paceline.core.tree import DraftTree
from tests.support import survey as surveys
from tests.support.survey import CHAINS, NOT_BUILT, REFUSED, TREES, UNCACHED, WRONG, survey

PAGE = Path(__file__).parents[2] / "docs" / "results" / "model-survey.json"


@pytest.mark.parametrize(
    ("model_type", "outcome"),
    [("llama", TREES), ("bloom", CHAINS), ("rwkv", REFUSED)],
)
def test_types_of_each_kind(model_type: str, outcome: str) -> None:
    assert survey(model_type).outcome == outcome


def test_model_with_other_answers_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "answer", lambda model, prompt: [5] * surveys.NUM_TOKENS)
    assert survey("llama").outcome in (UNCACHED, WRONG)
    monkeypatch.setattr(surveys, "uncached", lambda model: [])
    assert survey("llama") == surveys.Surveyed("llama", WRONG, "3 of 3 answers with RandomTrees")


def test_drafts_are_trees_with_side_branches() -> None:
    drafter = surveys.HiddenAnswers({(5, 6): list(range(20, 40))})
    trees = [drafter._tree(list(range(20, 24)), 20) for _ in range(20)]
    assert any(len(set(tree.parents)) < len(tree) for tree in trees)
    assert all(isinstance(tree, DraftTree) for tree in trees)


def test_no_type_on_the_page_is_wrong() -> None:
    rows = json.loads(PAGE.read_text())["rows"]
    assert {row["outcome"] for row in rows} == {TREES, CHAINS, UNCACHED, REFUSED, NOT_BUILT}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_all_types(model_type: str) -> None:
    assert survey(model_type).outcome != WRONG
