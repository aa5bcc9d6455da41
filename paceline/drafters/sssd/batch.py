"""Draft for all requests of a batch in several threads.

Each thread drafts for one request at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import ShardRow
from paceline.drafters.sssd.history import note_step
from paceline.drafters.sssd.paper import merge_sources, new_merge
from paceline.drafters.sssd.pool import Sources
from paceline.drafters.sssd.request_index import extend, request_at
from paceline.drafters.sssd.search import grow, new_workspace
from paceline.drafters.sssd.tree import write_tree
from paceline.util.compiled import Records, compiled, record_dtype, take_number


class DraftJob:
    """The inputs and outputs of drafting for one request.

    Attributes:
        address: Memory address of the request's `RequestState`. The state's arrays must have room
            for the new tokens.
        begin: Index of the request's first new token in `new_tokens`.
        end: Index after the request's last new token in `new_tokens`.
        nodes: Maximum number of nodes in the tree.
        levels: Maximum number of levels in the tree.
        size: Output: number of drafted nodes.
    """

    address: int
    begin: int
    end: int
    nodes: int
    levels: int
    size: int


JOB = record_dtype(DraftJob)


@compiled
def draft_batch(
    weights: NDArray[np.float32] | None,
    merging: bool | None,
    jobs: Records[DraftJob],
    new_tokens: NDArray[np.int64],
    table: Records[ShardRow],
    drafted: Any,
    taken: NDArray[np.int64],
    top_tokens: NDArray[np.int64],
) -> int:
    """Append each request's new tokens to its index, and draft its tree.

    Several threads call this function on the same arguments. If an argument is None, the code that
    needs the argument is removed at compile time.

    Args:
        weights: Weights of the scoring network, [WEIGHTS]; None with `fusion=paper`.
        merging: True to merge the sources as in the paper (`fusion=paper`), otherwise None.
        jobs: One job per request, [batch].
        new_tokens: New tokens of all requests.
        table: Shards in the current snapshot of the datastore, [shards]; empty if there is no
            datastore.
        drafted: Output: nodes of all trees, [batch, max_nodes] records of DRAFT_NODE.
        taken: Counter of the requests that any thread has started, [1]; initially 0.
        top_tokens: The target's top tokens at the position of each request's newest token,
            [batch, k]; -1 marks a missing token.
    Returns:
        The index of a damaged shard, or -1 if no damage was found.
    """
    max_nodes = drafted.shape[1]
    if merging is not None:
        merge = new_merge(max_nodes, len(table))
    if weights is not None:
        workspace = new_workspace(max_nodes, len(table))
    while True:
        index = take_number(taken.ctypes.data)
        if index >= len(jobs):
            return -1
        job = jobs[index]
        request = request_at(job.address)
        job.size = 0
        if weights is not None:
            note_step(request, new_tokens[job.begin : job.end])
        sources = Sources(extend(request, new_tokens[job.begin : job.end]), table)
        if job.nodes <= 0 or job.levels <= 0:
            continue
        if merging is not None:
            size = merge_sources(sources, merge, job.nodes, job.levels)
            write_tree(merge.tree, size, drafted[index])
        if weights is not None:
            size = grow(
                sources,
                workspace,
                job.nodes,
                job.levels,
                weights,
                request,
                top_tokens[index],
            )
            write_tree(workspace.tree, size, drafted[index])
        if size < 0:
            return -1 - size
        job.size = size
