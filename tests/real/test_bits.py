"""Test that SmolLM2's logits do not depend on batches, trees and prompt chunks.

They must equal those of the text alone, bit for bit.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from paceline.invariance.invariance import resolve_batch_invariance
from paceline.invariance.row_classes import bits
from paceline.model.loading import load_model
from tests.support.real import NEEDS_REAL
from tests.test_batch_invariant import SingleRequest, batched_logits, lm_of

pytestmark = [*NEEDS_REAL, pytest.mark.processor]
LENGTHS = (9, 90, 31)


def count_differing(model: Any, sequences: int, chunk: int, **changes: Any) -> tuple[int, int]:
    """Return the number of rows that differ from the text alone, and of all rows compared."""
    chance = random.Random(chunk)
    found = resolve_batch_invariance(model, True, sequences)
    texts = [
        [chance.randrange(3, 200) for _ in range(LENGTHS[row % 3])] for row in range(sequences)
    ]
    reference, unequal, count = SingleRequest(lm_of(model, found, 1, **changes)), 0, 0
    compared = {tuple(text) for text in texts[:3]}
    for text, logits in sorted(
        batched_logits(model, found, texts, chunk, **changes), key=lambda one: one[0]
    ):
        if any(tuple(text[: len(known)]) == known for known in compared):
            unequal += not torch.equal(bits(reference.logits(text)), bits(logits))
            count += 1
    return unequal, count


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize(("sequences", "chunk"), [(1, 512), (3, 64), (32, 64)])
def test_logits_depend_only_on_the_text(dtype: str, sequences: int, chunk: int) -> None:
    unequal, count = count_differing(load_model("smollm2", dtype), sequences, chunk)
    assert count >= 10
    assert unequal == 0


def test_logits_depend_on_the_batch_with_sdpa() -> None:
    unequal, _ = count_differing(load_model("smollm2", "bfloat16"), 3, 64, batch_invariant=False)
    assert unequal > 0
