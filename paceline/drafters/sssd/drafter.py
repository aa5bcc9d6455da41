"""SSSD: draft a tree of the most likely tokens from the request and a datastore.

Marzollo et al. 2024, "SSSD: Simply-Scalable Speculative Decoding". `fusion=paper` uses the paper's
sources and fixed weights. `fusion=calibrated` also searches the engine's recent answers, and
predicts the probability of each token from match statistics of all sources (`features`).

The modules of this package do the following:

- `request_index` finds earlier positions of the newest tokens in the request.
- `request_matches`, `store_matches` and `weak_matches` find a node's match pointers (positions
  after earlier matches), and store them in a `pool`.
- `counting` computes match statistics by token.
- `features` computes the inputs of a small network; `network` predicts a token's probability.
- `search` grows the tree with `fusion=calibrated`, most likely nodes first. `paper` grows it with
  `fusion=paper`.
- `last_top_tokens` adds candidates from the target's last logits.
- `batch` drafts for all requests of a step; `answer_memory` caches recent answers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline import datastore
from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_rule import NodeRule
from paceline.core.request import Request
from paceline.core.settings import WITH_BUDGET
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.datastore.store import Snapshot
from paceline.drafters.shared.array_trees import DRAFT_NODE, ArrayTrees
from paceline.drafters.sssd.answer_memory import AnswerMemory
from paceline.drafters.sssd.batch import JOB, draft_batch
from paceline.drafters.sssd.calibration import load_weights
from paceline.drafters.sssd.last_top_tokens import LastTopTokens
from paceline.drafters.sssd.options import SssdOptions
from paceline.drafters.sssd.request_index import RequestIndex
from paceline.drafters.sssd.settings import (
    BATCH_NODES,
    JOINT,
    MAX_NODES,
    REQUESTS_PER_THREAD,
    TOP_TOKEN_CONFIDENCE,
    TREE_NODES,
)
from paceline.util.machine import usable_cores
from paceline.util.threads import Threads

if TYPE_CHECKING:
    from paceline.datastore import Datastore

_log = logging.getLogger(__name__)


class Sssd(Drafter):
    """Finds draft tokens in the request, in recent answers and in a datastore.

    Compiled code drafts for all requests of a batch, in several threads if the batch is large.
    """

    name = "sssd"
    keeps_tokens = True
    learns_at_rest = False
    Options = SssdOptions

    def __init__(self, options: SssdOptions) -> None:
        self._options = options
        self.budget = options.budget
        if options.max_nodes is None:
            # Section 3.2 of the paper: the size of the batch sets the size of the trees.
            self.node_rule = (
                WITH_BUDGET if options.budget else NodeRule(TREE_NODES, batch_nodes=BATCH_NODES)
            )
        self._weights = load_weights()
        self._store: Datastore | None = None
        self._limit = 0  # the target's vocabulary size if smaller than the datastore's, else 0
        self._memory = AnswerMemory(options.memory_tokens) if options.memory_tokens else None
        self._learning: Datastore | AnswerMemory | None = self._memory
        self._snapshot = Snapshot(Path(options.datastore or ""), ())
        if options.datastore is not None and (
            datastore.has_store(options.datastore) or not options.update_datastore
        ):
            self._open_store(options.datastore)
        # The target's top tokens include the newest token.
        self.top_k = 1 + len(TOP_TOKEN_CONFIDENCE) if options.last_logits else 0
        self._top_tokens = LastTopTokens(len(TOP_TOKEN_CONFIDENCE) if options.last_logits else 0)
        self._index: dict[int, RequestIndex] = {}
        # This call compiles the code before the first request needs it.
        RequestIndex().append([])
        self._workers = usable_cores()
        self._threads = Threads(max(1, self._workers - 1), "paceline sssd")

    @classmethod
    def build(cls, options: SssdOptions) -> Sssd:
        """Build the drafter from its options.

        Raises:
            DatastoreError: The datastore cannot be read.
        """
        return cls(options)

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Limit drafts to token ids below the size of the target's vocabulary.

        If the datastore is updated and does not exist, the method creates an empty one.
        """
        path = self._options.datastore
        if path is not None and self._store is None:
            datastore.create(path, vocab_size, tokenizer=tokenizer)
            _log.warning("sssd: there was no datastore at %r; created an empty one", path)
            self._open_store(path)
        if vocab_size < self.ids_below:
            self._limit = min(vocab_size, self._limit or vocab_size)
            self._snapshot = Snapshot(self._snapshot.path, ())

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Reject a datastore that was made with a different tokenizer."""
        path = self._options.datastore
        if path is not None:
            # Without a target, as in a replay, an empty datastore would be of no use.
            store = self._store or self._open_store(path)
            store.check_tokenizer(tokenizer)

    def _open_store(self, path: str) -> Datastore:
        """Open the datastore for searches and, with `update_datastore`, for updates."""
        self._store = datastore.open(path)
        self.ids_below = self._store.vocab_size
        if self._options.update_datastore:
            self._learning = self._store
        return self._store

    def start(self, request: Request) -> None:
        """Create an empty index for the request; the first proposal indexes the prompt."""
        self._index[request.id] = RequestIndex(request.prompt_length)
        if self._store is not None:
            self._store.refresh()

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft one tree of retrieved tokens per request.

        Raises:
            DatastoreError: A shard of the datastore is damaged; the message names it.
        """
        if not any(max_nodes):
            return [EMPTY_TREE] * len(requests)
        return self.retrieve(requests, max_nodes).draft_trees()

    def retrieve(self, requests: Sequence[Request], max_nodes: list[int]) -> ArrayTrees:
        """Draft trees like `propose`, but return them as arrays.

        Args:
            requests: Requests to draft for; at least one.
            max_nodes: Maximum number of nodes for each request.
        Raises:
            DatastoreError: A shard of the datastore is damaged; the message names it.
        """
        batch = _SearchBatch(self._options.max_nodes or MAX_NODES)
        for request, limit in zip(requests, max_nodes, strict=True):
            batch.add(request, self._index[request.id], limit)
        if self._learning is not None:
            outputs = batch.outputs
            if self._learning is self._store:
                outputs = {
                    output: stored
                    for output, new in outputs.items()
                    if (stored := self._storable(new))
                }
            self._learning.follow(outputs)
        snapshot = self._searchable()  # kept alive until its shards have been checked
        fusion = (None, True) if self._options.fusion == "paper" else (self._weights, None)
        arguments = (*fusion, *batch.arguments(snapshot.table), self._top_tokens.rows(requests))
        for result in self._searched(len(requests), *arguments):
            snapshot.check(result)
        return batch.trees()

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Store the most likely tokens according to each request's last logits."""
        self._top_tokens.observe(outcomes)

    def stop(self, request: Request) -> None:
        """Free the request's index, and store its answer for later drafts.

        The last tokens of the prompt are stored together with the answer.
        """
        self._top_tokens.stop(request)
        if (
            self._index.pop(request.id, None) is not None
            and self._learning is not None
            and request.output_ids
        ):
            self._learning.unfollow(request.id)
            self._learning.append(
                self._storable(request.token_ids[max(0, request.prompt_length - JOINT) :])
            )

    def _storable(self, token_ids: list[int]) -> list[int]:
        """Return the leading tokens that are in the datastore's vocabulary."""
        if (
            self._store is None
            or self._learning is not self._store
            or max(token_ids, default=0) < self._store.vocab_size
        ):
            return token_ids
        end = next(index for index, token in enumerate(token_ids) if token >= self.ids_below)
        return token_ids[:end]

    def _searchable(self) -> Snapshot:
        """Return a snapshot of all shards, from the datastore and from cached answers."""
        stored = () if self._store is None else self._store.snapshot.shards
        shards = stored + (() if self._memory is None else self._memory.shards)
        if shards != self._snapshot.shards:
            self._snapshot = Snapshot(self._snapshot.path, shards, self._limit)
        return self._snapshot

    def _searched(self, count: int, *arguments: Any) -> list[int]:
        """Draft for a batch in this thread and, if the batch is large, in further threads.

        Args:
            count: Number of requests.
            arguments: Arguments of `draft_batch`.
        Returns:
            Result of each thread: -1, or the index of a damaged shard.
        """
        helpers = min(self._workers, count // REQUESTS_PER_THREAD) - 1
        others = [self._threads.submit(draft_batch, *arguments) for _ in range(helpers)]
        return [draft_batch(*arguments), *(other.result() for other in others)]


class _SearchBatch:
    """Collects the requests of a batch as arrays for one compiled call.

    Args:
        max_tree: Maximum number of nodes in a tree.
    Attributes:
        outputs: New output tokens by request id. For a request's first output, the last tokens of
            the prompt are included before the output.
    """

    def __init__(self, max_tree: int) -> None:
        self._max_tree = max_tree
        self._new_tokens: list[int] = []
        self._jobs: list[tuple[int, ...]] = []
        self._sizes: IntArray = np.zeros(0, dtype=np.int64)
        self._drafted: NDArray[np.void] = np.empty((0, 1), dtype=DRAFT_NODE)
        self.outputs: dict[int, list[int]] = {}

    def add(self, request: Request, index: RequestIndex, limit: int) -> None:
        """Add a request to the batch.

        Args:
            request: Request to draft for.
            index: Index of the request's text.
            limit: Maximum number of nodes in the tree.
        """
        token_ids, known, begin = request.token_ids, len(index), len(self._new_tokens)
        length, prompt_length = len(token_ids), request.prompt_length
        new = token_ids[known:]
        if length > prompt_length:
            joint = max(0, prompt_length - JOINT)
            output = new if known > prompt_length else token_ids[joint:]
            if output:
                self.outputs[request.id] = output
        index.reserve(length)
        self._new_tokens += new
        nodes, levels = min(limit, self._max_tree), request.max_length - length - 1
        self._jobs.append((index.address, begin, begin + len(new), nodes, levels, 0))

    def arguments(self, table: NDArray[np.void]) -> tuple[Any, ...]:
        """Allocate the output arrays, and return arguments for `draft_batch`.

        They are `jobs`, `new_tokens`, `table`, `drafted` and `taken`.
        """
        jobs: NDArray[np.void] = np.array(self._jobs, dtype=JOB)
        max_nodes = max(1, *(nodes for _, _, _, nodes, _, _ in self._jobs))
        self._drafted = np.empty((len(jobs), max_nodes), dtype=DRAFT_NODE)
        self._sizes = jobs["size"]
        new_tokens = np.array(self._new_tokens, dtype=np.int64)
        return jobs, new_tokens, table, self._drafted, np.zeros(1, dtype=np.int64)

    def trees(self) -> ArrayTrees:
        """Return the trees that `draft_batch` has drafted."""
        rows, width = self._drafted.shape
        begins = range(0, rows * width, width)
        ends = [begin + size for begin, size in zip(begins, self._sizes.tolist(), strict=True)]
        return ArrayTrees(self._drafted.reshape(-1), begins, ends)
