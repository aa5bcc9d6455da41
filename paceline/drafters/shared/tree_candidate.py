"""Define the arrays and records for merging several draft trees into one."""

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
    """A token that is in the tree, or that may be added to it from the frontier.

    Attributes:
        token: Token id.
        parent: Index of the parent in the tree; -1 is the root.
        depth: Depth; 1 for a child of the root.
        nodes: For each source of drafts, the token's node in the source's tree, or ABSENT.
        cells: For each source, the index of the token's cell in the calibration table, or ABSENT.
        known: Number of valid tokens in `tail`.
        origin: `Origin` of the most confident source.
        tail: Newest tokens up to and including this token, [LONGEST_KEY].
        confidence: Acceptance probability, given that the parent is accepted.
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
    """The requests of a batch, as inputs for growing their draft trees.

    Attributes:
        newest: Newest tokens of each request, ending with the root, [batch, LONGEST_KEY]; shorter
            texts are right-aligned.
        limits: For each request, the number of tokens in `newest`, the maximum number of nodes, and
            the maximum depth, [batch, 3].
        temperatures: Temperature of each request, [batch]; 0 means greedy.
        max_context: Maximum number of tokens in the context of a cached distribution.
        min_path_probability: Minimum acceptance probability of a candidate's whole path.
    """

    newest: IntArray
    limits: IntArray
    temperatures: NDArray[np.float64]
    max_context: int
    min_path_probability: float


class TreeQuery(NamedTuple):
    """The settings and limits for growing the draft tree of one request.

    Attributes:
        max_context: Maximum number of tokens in the context of a cached distribution.
        temperature: Temperature of the request; 0 means greedy.
        max_depth: Maximum depth of the tree.
        min_path_probability: Minimum acceptance probability of a candidate's whole path.
    """

    max_context: int
    temperature: float
    max_depth: int
    min_path_probability: float


class TreeInputs(NamedTuple):
    """All inputs for growing the draft tree of one request.

    Attributes:
        table: Cached distributions.
        calibration: Measured acceptance rates by source.
        sources: Draft trees of all sources, for the whole batch.
        row: Index of the request in the batch.
        query: Settings and limits of the request.
    """

    table: SuccessorTable
    calibration: SourceCalibration
    sources: SourceTrees
    row: int
    query: TreeQuery
