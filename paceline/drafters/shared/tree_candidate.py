"""Define the arrays and records for growing the merged tree."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.drafters.shared.draft_sources import SOURCES, SourceTrees
from paceline.drafters.shared.recycled import SuccessorTable
from paceline.drafters.shared.source_calibration import SourceCalibration
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.util.compiled import record_dtype

NUM_SOURCES = len(SOURCES)
Int32 = Annotated[int, np.int32]


class TreeCandidate:
    """Describe a token on the frontier or in the tree.

    Attributes:
        token: The token.
        parent: Parent in the tree; -1 is the root.
        depth: Depth; 1 for a child of the root.
        nodes: Node in the tree of each source, or ABSENT.
        cells: Calibration cell of each source, or ABSENT.
        known: Number of valid tokens in `tail`.
        origin: Origin of the most confident source.
        tail: Newest tokens, ending with this one.
        confidence: Acceptance probability given the parent.
        path_confidence: Acceptance probability of the whole path.
    """

    token: Int32
    parent: Int32
    depth: Int32
    nodes: Annotated[Any, np.int32, NUM_SOURCES]
    cells: Annotated[Any, np.int32, NUM_SOURCES]
    known: Int32
    origin: Int32
    tail: Annotated[Any, np.int32, LONGEST_KEY]
    confidence: float
    path_confidence: float


CANDIDATE = record_dtype(TreeCandidate)


class TreeQueries(NamedTuple):
    """Describe the requests that trees are grown for.

    Attributes:
        newest: [batch, LONGEST_KEY] newest tokens of each request, the root last; a short text
            fills the end.
        limits: [batch, 3] number of newest tokens, maximum number of nodes, and maximum depth.
        temperatures: [batch] temperature of each request; 0 means greedy.
        max_context: Maximum number of tokens in a context of the cached distributions.
        min_path_probability: Minimum path probability of a candidate.
    """

    newest: IntArray
    limits: IntArray
    temperatures: NDArray[np.float64]
    max_context: int
    min_path_probability: float


class TreeQuery(NamedTuple):
    """Describe the request that a tree is grown for.

    Attributes:
        max_context: Maximum number of tokens in a context of the cached distributions.
        temperature: Temperature of the request; 0 means greedy.
        max_depth: Maximum depth of the tree.
        min_path_probability: Minimum path probability of a candidate.
    """

    max_context: int
    temperature: float
    max_depth: int
    min_path_probability: float


class TreeInputs(NamedTuple):
    """Hold all inputs from which a tree is grown.

    Attributes:
        table: Cached distributions.
        calibration: Acceptance rates by source.
        sources: Draft trees of the sources, for the batch.
        row: Row of the request in `sources`.
        query: The request.
    """

    table: SuccessorTable
    calibration: SourceCalibration
    sources: SourceTrees
    row: int
    query: TreeQuery
