"""List the sources whose draft trees the merged tree joins.

A further source needs one more `DraftSource` in `SOURCES`, with the next free
`calibration_table`, and its trees in the call of `Recycler.draft`. The merged tree and its
calibration handle all sources of the list alike. docs/development/architecture.md lists all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.origin import Origin
from paceline.core.tree import DraftTree, IntArray
from paceline.drafters.shared.settings import DRAFT_HEAD_PRIOR, DRAFT_MODEL_PRIOR, SourcePrior

PAIRED = -1  # `calibration_table` of the source that is paired with the cached distributions


@dataclass(frozen=True, slots=True, eq=False)
class DraftSource:
    """Describe a source of draft trees to the merged tree.

    Attributes:
        name: Name for messages and for people.
        calibration_table: Index of its table in the pool file; or PAIRED.
        prior: Acceptance probability before anything was counted; None for the paired source.
    """

    name: str
    calibration_table: int
    prior: SourcePrior | None = None


RETRIEVAL = DraftSource("retrieval", PAIRED)
DRAFT_HEAD = DraftSource("draft_head", 1, DRAFT_HEAD_PRIOR)
DRAFT_MODEL = DraftSource("draft_model", 0, DRAFT_MODEL_PRIOR)

# The paired source comes first. Each further source is weighed against the result of the sources
# before it, in this order: cheap sources first.
SOURCES = (RETRIEVAL, DRAFT_HEAD, DRAFT_MODEL)
WEIGHED = tuple(
    sorted(
        (source for source in SOURCES if source.calibration_table != PAIRED),
        key=lambda source: source.calibration_table,
    )
)


class SourceTrees(NamedTuple):
    """Hold the trees of all sources for one request, one after the other.

    Attributes:
        token_ids: [nodes] token ids.
        parents: [nodes] parent in the tree of the source; -1 is the root.
        confidence: [nodes] acceptance probability given the parent, by the source.
        origins: [nodes] origins of the tokens.
        starts: [1 + sources] first node of each source, and the end.
        tables: [sources] `DraftSource.calibration_table` of each source.
    """

    token_ids: IntArray
    parents: IntArray
    confidence: NDArray[np.float64]
    origins: NDArray[np.int8]
    starts: IntArray
    tables: IntArray


_TABLES: IntArray = np.array([source.calibration_table for source in SOURCES], dtype=np.int64)


def flatten_sources(trees: Mapping[DraftSource, DraftTree]) -> SourceTrees:
    """Return the trees in the form of `merged_tree.grow`.

    Args:
        trees: Draft tree of each source, with confidences; a source without a tree is left out.
    """
    token_ids: list[int] = []
    parents: list[int] = []
    confidence: list[float] = []
    origins: list[int] = []
    starts = [0]
    for source in SOURCES:
        tree = trees.get(source)
        if tree is not None and tree.token_ids:
            assert tree.confidence is not None, f"{source.name} gives confidences"
            token_ids += tree.token_ids
            parents += tree.parents
            confidence += tree.confidence
            origins += [Origin.DRAFT] * len(tree) if tree.origins is None else tree.origins
        starts.append(len(token_ids))
    return SourceTrees(
        np.array(token_ids, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.array(confidence, dtype=np.float64),
        np.array(origins, dtype=np.int8),
        np.array(starts, dtype=np.int64),
        _TABLES,
    )
