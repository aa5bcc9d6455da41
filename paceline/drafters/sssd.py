"""SSSD: guesses from the request itself and from a large datastore, fused into one tree by the chance that each is right.

Marzollo et al. 2024, "SSSD: Simply-Scalable Speculative Decoding". `fusion=paper` has its sources and its hand-set weights;
`fusion=calibrated` predicts the chance of each child from the evidence of both sources (`sssd_features`, fitted by
`paceline replay --fit`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.config import require_range
from paceline.datastore.layout import EMBEDDED
from paceline.drafter import Drafter
from paceline.drafters.request_index import JOB_COLUMNS, JOB_SIZE, RequestIndex
from paceline.drafters.sssd_calibration import Calibration
from paceline.drafters.sssd_features import FEATURES
from paceline.drafters.sssd_paper import draft_batch_paper
from paceline.drafters.sssd_search import NO_RECORD, Record, draft_batch
from paceline.errors import ConfigError
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree

FUSIONS = ("calibrated", "paper")
_SHARE = 4  # sequences of a batch that are worth a thread
_MOST_NODES = 512
_NODES, _SHARED_NODES, _LEAST_NODES = 32, 64, 4  # of a tree, of a batch, and of a tree in any batch


@dataclass(frozen=True, slots=True)
class SssdOptions:
    """Attributes:
    datastore: folder of a store, or "demo", that of the embedded target; none = the request alone.
    fusion: calibrated | paper.
    calibration: a file of `paceline replay --fit`; none = the one that comes with the package.
    nodes: most nodes of a tree. Not given: 32, and in a larger batch what makes 64 in all, 4 at least; where the caller allows 32
        or fewer, that many.
    live: finished answers go into the datastore.
    """

    datastore: str | None = None
    fusion: str = "calibrated"
    calibration: str | None = None
    nodes: int | None = None
    live: bool = False

    def __post_init__(self) -> None:
        if self.nodes is not None:
            require_range("sssd", "nodes", self.nodes, 1, _MOST_NODES)
        if self.fusion not in FUSIONS:
            raise ConfigError(f"sssd: fusion is {self.fusion!r}; allowed are {', '.join(FUSIONS)}.")
        if self.fusion == "paper" and self.calibration is not None:
            raise ConfigError("sssd: calibration came with fusion=paper, whose weights are fixed; leave one of them out.")
        if self.live and self.datastore is None:
            raise ConfigError("sssd: live=true came without a datastore to append to; give datastore=PATH.")
        if self.live and self.datastore == EMBEDDED:
            raise ConfigError(
                f"sssd: live=true came with datastore={EMBEDDED}, which belongs to the package and is only read; build a store"
                " of your own (paceline datastore build), and name its folder."
            )


class Sssd(Drafter):
    """Guesses only: lossless and seed-identical at any temperature. A batch is searched in one call, by all cores."""

    name = "sssd"
    Options = SssdOptions

    def __init__(self, options: SssdOptions) -> None:
        from paceline import datastore

        self._options = options
        self._calibration = Calibration.load(options.calibration)
        self._store = None if options.datastore is None else datastore.open(options.datastore)
        if self._store is not None:
            self.ids_below = self._store.vocab_size
        self._index: dict[int, RequestIndex] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @classmethod
    def build(cls, options: SssdOptions) -> Sssd:
        """From its options.

        Raises:
            DatastoreError, ConfigError: a store or a calibration that cannot be read.
        """
        return cls(options)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """The ids of the store must be of `tokenizer`."""
        if self._store is not None:
            self._store.check_tokenizer(tokenizer)

    def start(self, seq: Sequence) -> None:
        """An empty index; the prompt is indexed with the first proposal."""
        self._index[seq.id] = RequestIndex(seq.prompt_length)
        if self._store is not None:
            self._store.refresh()

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """One tree per sequence.

        Raises:
            DatastoreError: a shard of the datastore is damaged; it is named.
        """
        return self._drafted(seqs, max_nodes, NO_RECORD) if seqs else []

    def record(
        self, seq: Sequence, truth: Seq[int], nodes: int, room: int = 4096
    ) -> tuple[DraftTree, NDArray[np.float32], NDArray[np.float32]]:
        """Propose for one sequence, and tell what was offered behind the tokens that are known to follow.

        Args:
            truth: the tokens that follow. nodes: of the tree.
        Returns:
            the tree; for each token offered the inputs of the network [offered, inputs], and whether it was right [offered].
        """
        known = np.array(truth, dtype=np.int64)
        record = Record(known, np.empty((room, len(FEATURES)), np.float32), np.empty(room, np.float32), np.zeros(1, np.int64))
        (tree,) = self._drafted([seq], [nodes], record)
        used = int(record.used[0])
        return tree, record.inputs[:used], record.labels[:used]

    def stop(self, seq: Sequence) -> None:
        """Drop the index; with `live`, keep the answer, joined to the end of the prompt."""
        known = self._index.pop(seq.id, None)
        if known is not None and self._options.live and self._store is not None and seq.output_ids:
            self._store.append(seq.token_ids[max(0, seq.prompt_length - 3) :])

    def _drafted(self, seqs: Seq[Sequence], max_nodes: list[int], record: Record) -> list[DraftTree]:
        batch = _Batch(seqs, [self._index[seq.id] for seq in seqs], self._limits(max_nodes))
        snapshot = None if self._store is None else self._store.snapshot
        arguments = batch.arguments(_NO_TABLE if snapshot is None else snapshot.table)
        if self._options.fusion == "paper":
            results = self._shared(len(seqs), draft_batch_paper, *arguments)
        else:
            results = self._shared(len(seqs), draft_batch, self._calibration.weights, record, *arguments)
        if snapshot is not None:  # it is kept alive until here
            for result in results:
                snapshot.check(result)
        return batch.trees()

    def _limits(self, max_nodes: list[int]) -> list[int]:
        """Most nodes of each tree; by the size of the batch, as in section 3.2 of the paper, if nothing else was said."""
        most = self._options.nodes
        if most is None:
            shared = max(_LEAST_NODES, min(_NODES, _SHARED_NODES // len(max_nodes)))
            most = _NODES if max(max_nodes) <= _NODES else shared
        return [min(limit, most) for limit in max_nodes]

    def _shared(self, count: int, search: Callable[..., int], *arguments: Any) -> list[int]:
        """Let as many threads as are worth it search a batch of `count` sequences, this one among them."""
        helpers = min(self._workers, count // _SHARE) - 1
        if helpers > 0 and self._threads is None:
            self._threads = ThreadPoolExecutor(self._workers - 1, "paceline sssd")
        others = [self._threads.submit(search, *arguments) for _ in range(helpers)] if self._threads is not None else []
        return [search(*arguments), *(other.result() for other in others)]


_NO_TABLE = np.empty((0, 11), dtype=np.int64)


class _Batch:
    """The arrays of one call: what is new, what may be drafted, what was."""

    def __init__(self, seqs: Seq[Sequence], indices: list[RequestIndex], nodes: list[int]) -> None:
        fresh: list[int] = []
        jobs: list[int] = []
        for seq, index, limit in zip(seqs, indices, nodes, strict=True):
            index.reserve(len(seq))
            begin = len(fresh)
            fresh += seq.token_ids[len(index) :]
            jobs += (index.address, begin, len(fresh), limit, seq.remaining - 1, 0)
        self._fresh, self._jobs = np.array(fresh, dtype=np.int64), np.array(jobs, dtype=np.int64).reshape(-1, JOB_COLUMNS)
        self._tokens = np.empty((len(indices), max(1, *nodes)), dtype=np.int64)
        self._parents, self._chances = np.empty_like(self._tokens), np.empty(self._tokens.shape)

    def arguments(self, table: NDArray[np.int64]) -> tuple[Any, ...]:
        """As the compiled functions take them."""
        return self._jobs, self._fresh, table, self._tokens, self._parents, self._chances, np.zeros(1, dtype=np.int64)

    def trees(self) -> list[DraftTree]:
        """What was drafted."""
        columns = zip(self._jobs[:, JOB_SIZE].tolist(), self._tokens, self._parents, self._chances, strict=True)
        return [
            DraftTree(tokens[:size].tolist(), parents[:size].tolist(), None, chances[:size].tolist()) if size else EMPTY_TREE
            for size, tokens, parents, chances in columns
        ]
