"""Test model sketches: copies of a model are recognised, other models are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.bench import enlarge
from paceline.model.identity import Sketch
from paceline.model.settings import MIN_SKETCH_COSINE, WARN_SKETCH_COSINE
from tests.support.models import make, rounded, with_new_weights
from tests.support.shared import Pair


def noisy(weight: Tensor, share: float) -> Tensor:
    return weight + share * weight.std() * torch.randn(
        weight.shape, generator=torch.Generator().manual_seed(3)
    )


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda weight: weight,
    "bfloat16": lambda weight: weight.bfloat16().float(),
    "float16": lambda weight: weight.half().float(),
    "8 bits": lambda weight: rounded(weight, 8),
    "4 bits": lambda weight: rounded(weight, 4),
    "fine-tuned": lambda weight: noisy(weight, 0.1),
}


def changed(model: Any, change: Callable[[Tensor], Tensor]) -> Any:
    made = copy.deepcopy(model)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(change(weight))
    return made


@pytest.mark.parametrize("kind", COPIES)
def test_copies_are_recognised(pair: Pair, kind: str) -> None:
    assert (
        Sketch.from_model(pair.target).closeness(changed(pair.target, COPIES[kind]))
        > WARN_SKETCH_COSINE
    )


def test_distant_copy_is_recognised_with_a_warning(pair: Pair) -> None:
    assert (
        MIN_SKETCH_COSINE
        < Sketch.from_model(pair.target).closeness(
            changed(pair.target, lambda weight: noisy(weight, 0.4))
        )
        < WARN_SKETCH_COSINE
    )


@pytest.mark.parametrize("rows", [200, 300, 400])
def test_padding_does_not_change_the_sketch(pair: Pair, rows: int) -> None:
    padded = copy.deepcopy(pair.target)
    padded.resize_token_embeddings(rows, mean_resizing=False)
    assert Sketch.from_model(pair.target).closeness(padded) > WARN_SKETCH_COSINE


def test_other_models_are_not_recognised(pair: Pair) -> None:
    sketch = Sketch.from_model(pair.target)
    for seed in range(5):
        assert abs(sketch.closeness(with_new_weights(pair.target, seed))) < MIN_SKETCH_COSINE / 2
    assert sketch.closeness(make("llama")) == 0.0
    shorter = copy.deepcopy(pair.target)
    shorter.config.num_hidden_layers -= 1
    assert sketch.closeness(shorter) == 0.0


def test_enlarged_model_is_recognised(pair: Pair) -> None:
    sketch = Sketch.from_model(pair.target)
    larger = enlarge(
        enlarge(pair.target, 2 * sketch.hidden_size, sketch.layers),
        2 * sketch.hidden_size,
        sketch.layers + 1,
    )
    assert sketch.closeness(larger) > WARN_SKETCH_COSINE
    assert Sketch.from_model(larger).closeness(pair.target) > WARN_SKETCH_COSINE


def test_encoded_sketch_is_complete(pair: Pair) -> None:
    sketch = Sketch.from_model(pair.target)
    found = Sketch.decode(sketch.encode())
    assert (found.sample == sketch.sample).all()
    assert (found.vocab_size, found.hidden_size, found.layers) == (
        sketch.vocab_size,
        sketch.hidden_size,
        sketch.layers,
    )
    for text in ("", "1 2 3", "1 2 3 4 5 !", sketch.encode()[:-8]):
        with pytest.raises(ValueError, match=r".+"):
            Sketch.decode(text)
