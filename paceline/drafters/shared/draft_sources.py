"""List the sources whose draft trees are combined into the merged tree.

To add a source, add a `DraftSource` with the next unused `calibration_table` to `SOURCES`, and
pass the source's trees to `Recycler.draft`. The merged tree and its calibration handle all listed
sources in the same way. docs/development/architecture.md lists all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from paceline.core.tree import IntArray
from paceline.drafters.shared.array_trees import DRAFT_NODE, ArrayTrees, DraftNode
from paceline.drafters.shared.settings import (
    DRAFT_HEAD_PRIOR,
    DRAFT_MODEL_PRIOR,
    GRAMMAR_PRIOR,
    PREDICTION_PRIOR,
    SourcePrior,
)
from paceline.util.compiled import Records

PAIRED = -1  # `calibration_table` of the source that is calibrated together with Token Recycling


@dataclass(frozen=True, slots=True, eq=False)
class DraftSource:
    """A source of draft trees for the merged tree.

    Attributes:
        name: Name shown in messages and reports.
        calibration_table: Index of the source's calibration table in the pool file. The value is
            PAIRED for retrieval, which shares a table with Token Recycling.
        prior: Acceptance probabilities to assume until outcomes have been counted; None for
            retrieval (see `new_source_calibration`).
    """

    name: str
    calibration_table: int
    prior: SourcePrior | None = None


RETRIEVAL = DraftSource("retrieval", PAIRED)
DRAFT_HEAD = DraftSource("draft_head", 1, DRAFT_HEAD_PRIOR)
DRAFT_MODEL = DraftSource("draft_model", 0, DRAFT_MODEL_PRIOR)
GRAMMAR = DraftSource("grammar", 2, GRAMMAR_PRIOR)
PREDICTION = DraftSource("prediction", 3, PREDICTION_PRIOR)

# The paired source comes first. Each further source adjusts the probabilities from the sources
# before it.
SOURCES = (RETRIEVAL, PREDICTION, DRAFT_HEAD, DRAFT_MODEL, GRAMMAR)
WEIGHED = tuple(
    sorted(
        (source for source in SOURCES if source.calibration_table != PAIRED),
        key=lambda source: source.calibration_table,
    )
)


class SourceTrees(NamedTuple):
    """The draft trees of all sources for the requests of a batch.

    Attributes:
        paired: Nodes of the retrieval source, which is calibrated together with Token Recycling's
            cached distributions, [n].
        weighed: Nodes of all other sources, [n].
        bounds: Index of each tree's first node, and index after its last node, [sources, 2, batch].
            The indices refer to `paired` or `weighed`.
        tables: `DraftSource.calibration_table` of each source, [sources].
    """

    paired: Records[DraftNode]
    weighed: Records[DraftNode]
    bounds: IntArray
    tables: IntArray


_NO_NODES: Any = np.empty(0, dtype=DRAFT_NODE)
_TABLES: IntArray = np.array([source.calibration_table for source in SOURCES], dtype=np.int64)


def join_sources(trees: Mapping[DraftSource, ArrayTrees], num_requests: int) -> SourceTrees:
    """Join the trees of all sources into the arrays that `grow_trees` reads.

    Args:
        trees: Trees of each source, with confidences; sources without trees are omitted.
        num_requests: Number of requests in the batch.
    """
    paired, weighed = _NO_NODES, _NO_NODES
    bounds: list[int] = []
    for source in SOURCES:
        given = trees.get(source)
        if given is None or not given.nodes.size:
            bounds += [0] * (2 * num_requests)
        elif source.calibration_table == PAIRED:
            paired = given.nodes
            bounds += (*given.begins, *given.ends)
        else:
            first = len(weighed)
            bounds += [first + node for node in (*given.begins, *given.ends)]
            weighed = np.concatenate([weighed, given.nodes]) if first else given.nodes
    shape = len(SOURCES), 2, num_requests
    return SourceTrees(paired, weighed, np.array(bounds, dtype=np.int64).reshape(shape), _TABLES)
