"""What `sssd` offers besides what followed its matches: behind a skipped token, and in the same
relation; and the copied text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.drafters.sssd.pointers import POINTER, REQUEST
from paceline.drafters.sssd.pool import Pool, new_pool
from paceline.drafters.sssd.settings import LONGEST
from paceline.drafters.sssd.weak_matches import follow_copy
from tests.support.sssd_inputs import offered_tokens
from tests.support.stores import store


def offers(text: list[int], token: int, datastore: Path | None = None) -> dict[str, float] | None:
    """Return the network inputs of a token after the text; None if it is not offered."""
    return offered_tokens(text, datastore).get(token)


def test_behind_a_skipped_token() -> None:
    found = offers([1, 2, 3, 4, 5, 6, 7, 1, 2, 9], 4)
    assert found is not None
    assert found["skip share"] > 0
    assert found["request hits"] == pytest.approx(0.4)
    assert offers([1, 2, 3, 4, 5, 6, 7, 1, 8, 9], 4) is None


def test_behind_a_skipped_token_of_the_store(tmp_path: Path) -> None:
    """And not in the document that comes next."""
    path = store(tmp_path / "store", [[1, 2, 3, 4], [5, 6, 7, 1, 2], [10, 11], [5, 6, 8]], 60)
    assert offers([30, 1, 2, 9], 4, path) is not None
    assert all(offers([30, 1, 2, 9], other, path) is None for other in (10, 11, 5))
    assert offers([30, 7, 1, 9], 11, path) is None


def test_in_the_same_relation() -> None:
    """20 7 21 7 before, 20 9 21 now: 9, two back and behind 20 as 7 was."""
    found = offers([20, 7, 21, 7, 30, 31, 20, 9, 21], 9)
    assert found is not None
    assert found["vote share"] > 0
    assert offers([22, 7, 21, 7, 30, 31, 20, 9, 21], 9) is None


def test_a_token_is_known_by_its_latest_place() -> None:
    near, far = offers([1, 2, 3, 4, 2, 9, 1], 2), offers([1, 2, 3, 4, 5, 9, 1], 2)
    assert near is not None
    assert far is not None
    assert near["seen"] < far["seen"]


def pool_of(pointers: list[tuple[int, int]]) -> Pool:
    """Pointers into a request: place, length of match."""
    pool = new_pool(len(pointers), LONGEST, 1, 0)
    return pool._replace(
        pointers=np.array([(place, REQUEST, match, 0) for place, match in pointers], dtype=POINTER)
    )


@pytest.mark.parametrize(
    ("pointers", "place", "expected"),
    [
        ([(90, 5), (20, 5), (40, 1)], 18, 20),  # a long match leads; of two, the one ahead
        ([(90, 5), (40, 1)], 18, 90),
        (
            [(40, 1), (25, 1), (10, 2)],
            18,
            25,
        ),  # a short one moves the place a little, rather ahead than back
        ([(400, 3)], 18, 18),
        ([(400, 3)], -9, -9),
        ([], 18, 18),
    ],
)
def test_the_copied_text_is_followed(
    pointers: list[tuple[int, int]], place: int, expected: int
) -> None:
    assert follow_copy(pool_of(pointers), 0, len(pointers), place) == expected
