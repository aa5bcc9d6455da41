"""Test candidates of `sssd` that do not follow a match directly.

They follow a skipped token, repeat a relation between tokens or continue copied text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.drafters.sssd.pointers import POINTER, REQUEST
from paceline.drafters.sssd.pool import Pool, new_pool
from paceline.drafters.sssd.settings import LONGEST
from paceline.drafters.sssd.weak_matches import follow_copy
from tests.support.kernels import from_python
from tests.support.sssd_inputs import offered_tokens
from tests.support.stores import store

_follow_copy = from_python(follow_copy)


def network_inputs(
    text: list[int], token: int, datastore: Path | None = None
) -> dict[str, float] | None:
    """Return a candidate's network inputs after the text, or None if it is no candidate."""
    return offered_tokens(text, datastore).get(token)


def test_candidate_after_a_skipped_token() -> None:
    found = network_inputs([1, 2, 3, 4, 5, 6, 7, 1, 2, 9], 4)
    assert found is not None
    assert found["skip share"] > 0
    assert found["request hits"] == pytest.approx(0.4)
    assert network_inputs([1, 2, 3, 4, 5, 6, 7, 1, 8, 9], 4) is None


def test_candidate_after_a_skipped_datastore_token(tmp_path: Path) -> None:
    """Check also that candidates do not come from the next document."""
    path = store(tmp_path / "store", [[1, 2, 3, 4], [5, 6, 7, 1, 2], [10, 11], [5, 6, 8]], 60)
    assert network_inputs([30, 1, 2, 9], 4, path) is not None
    assert all(network_inputs([30, 1, 2, 9], other, path) is None for other in (10, 11, 5))
    assert network_inputs([30, 7, 1, 9], 11, path) is None


def test_candidate_in_the_same_relation() -> None:
    """Check 20 7 21 7 against 20 9 21: 9 follows, two back and after 20 as 7 did."""
    found = network_inputs([20, 7, 21, 7, 30, 31, 20, 9, 21], 9)
    assert found is not None
    assert found["vote share"] > 0
    assert network_inputs([22, 7, 21, 7, 30, 31, 20, 9, 21], 9) is None


def test_distance_counts_from_the_latest_position() -> None:
    near, far = network_inputs([1, 2, 3, 4, 2, 9, 1], 2), network_inputs([1, 2, 3, 4, 5, 9, 1], 2)
    assert near is not None
    assert far is not None
    assert near["seen"] < far["seen"]


def pool_of(pointers: list[tuple[int, int]]) -> Pool:
    """Return a pool of pointers into a request, given as (position, match length)."""
    pool = new_pool(len(pointers), LONGEST, 1, 0)
    return pool._replace(
        pointers=np.array([(place, REQUEST, match, 0) for place, match in pointers], dtype=POINTER)
    )


@pytest.mark.parametrize(
    ("pointers", "place", "expected"),
    [
        ([(90, 5), (20, 5), (40, 1)], 18, 20),  # the longest match wins; of two, the one ahead
        ([(90, 5), (40, 1)], 18, 90),
        (
            [(40, 1), (25, 1), (10, 2)],
            18,
            25,
        ),  # a short match moves the position a little, rather ahead than back
        ([(400, 3)], 18, 18),
        ([(400, 3)], -9, -9),
        ([], 18, 18),
    ],
)
def test_copied_text_is_followed(
    pointers: list[tuple[int, int]], place: int, expected: int
) -> None:
    assert _follow_copy(pool_of(pointers), 0, len(pointers), place) == expected
