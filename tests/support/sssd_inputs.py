"""Read the network inputs of the tokens that `sssd` considers after a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline import SamplingParams, datastore
from paceline.core.request import Request
from paceline.datastore import Snapshot
from paceline.drafters.sssd.calibration import load_weights
from paceline.drafters.sssd.counting import count_tokens, guess_of_request
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.features import FEATURES, describe_node, describe_token
from paceline.drafters.sssd.history import note_step
from paceline.drafters.sssd.options import SssdOptions
from paceline.drafters.sssd.pool import PointerRange, Sources
from paceline.drafters.sssd.request_index import RequestIndex, extend, last_position, request_at
from paceline.drafters.sssd.search import grow, new_workspace
from paceline.util.compiled import compiled


def offered_tokens(text: list[int], folder: Path | None = None) -> dict[int, dict[str, float]]:
    """Return the inputs by name for each candidate child of the root of a draft tree."""
    shards = () if folder is None else datastore.open(folder).snapshot.shards
    snapshot = Snapshot(Path(), shards)
    index = RequestIndex(len(text))
    index.reserve(len(text))
    tokens, rows = np.zeros(200, np.int64), np.zeros((200, len(FEATURES)), np.float32)
    count = _describe_offered(
        index.address, np.array(text), snapshot.table, load_weights(), tokens, rows
    )
    named = [dict(zip(FEATURES, row, strict=True)) for row in rows[:count].tolist()]
    return dict(zip(tokens[:count].tolist(), named, strict=True))


@compiled
def _describe_offered(
    address: int, text: Any, table: Any, weights: Any, tokens: Any, rows: Any
) -> int:
    """Fill in the candidate tokens and their inputs; return the number of tokens."""
    request = request_at(address)
    note_step(request, text)
    sources = Sources(extend(request, text), table)
    workspace = new_workspace(1, len(table))
    grow(sources, workspace, 1, 1, weights, request, np.empty(0, np.int64))
    counts, root = workspace.counts, workspace.tree[0]
    network = workspace.network
    count = count_tokens(
        table,
        workspace.pool,
        PointerRange(root.begin, root.end),
        text.size,
        request.copy_position,
        counts,
    )
    describe_node(network.inputs[0], counts, 0, 1.0, request)
    best = guess_of_request(counts, count)
    for which in range(count):
        tokens[which] = counts.tokens[which].token
        seen = last_position(sources.text, tokens[which])
        describe_token(network.inputs[0], counts, which, best, text.size, seen)
        rows[which] = network.columns
    return count


def candidates(text: list[int], folder: Path | None = None) -> dict[int, float]:
    """Return the confidence of each child of the root in the draft tree after a text."""
    request = Request(text, SamplingParams(max_new_tokens=10))
    drafter = Sssd(SssdOptions(None if folder is None else str(folder)))
    drafter.start(request)
    (tree,) = drafter.propose([request], [24])
    return {
        token: confidence
        for token, parent, confidence in zip(
            tree.token_ids, tree.parents, tree.confidence or [], strict=True
        )
        if parent < 0
    }
