"""Compare `fusion=paper` with a plain simulation of the public code.

The text is the package's own source code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paceline
from paceline import datastore
from paceline.drafters import create
from paceline.replay import replay
from tests.support.sssd_public import Request, Store, draft, tokens_per_step


def test_by_hand() -> None:
    """Check the datastore, and that output is found only once a window of it is complete."""
    store = Store([[1, 2, 3, 4], [1, 2, 7, 8], [5, 6, 9]])
    assert draft(Request([50, 51, 52]), store, [1, 2], 7) == {3: {4: {}}, 7: {8: {}}}
    request = Request([50, 51, 52])
    request.append([20, 21, 22, 23, 24])
    assert draft(request, store, [21, 22], 7) == {}
    request.append([25, 26, 27])
    assert draft(request, store, [21, 22], 7) == {}
    request.append([28])
    assert draft(request, store, [21, 22], 7) == {23: {24: {25: {26: {27: {28: {}}}}}}}


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Return the package's source files with a number for each word and sign."""
    ids: dict[str, int] = {}
    files = sorted(Path(paceline.__file__).parent.glob("*.py"))
    return [
        [
            ids.setdefault(word, len(ids))
            for word in re.findall(r"\n *|\w+|[^\w\s]", file.read_text())
        ]
        for file in files
    ]


@pytest.mark.parametrize("nodes", [8, 16, 32])
def test_tokens_per_step_equal_the_public_code(
    tmp_path: Path, texts: list[list[int]], nodes: int
) -> None:
    """Check that they are within 3 %."""
    documents, answers = texts[::2], texts[1::2]
    traces = [(text[:150], text[150:350]) for text in answers if len(text) > 350]
    datastore.build(tmp_path / "store", documents, 1 + max(map(max, texts)), workers=1)
    ours = replay(
        create(f"sssd:datastore={tmp_path / 'store'},fusion=paper"), traces, nodes
    ).tokens_per_step
    assert ours == pytest.approx(tokens_per_step(traces, Store(documents), nodes), rel=0.03)
