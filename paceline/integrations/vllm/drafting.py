"""Run vLLM's drafting steps: match requests, learn from outcomes, and draft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.core.drafter import Outcome
from paceline.core.node_rule import node_limit
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.datastore.shard import Shard
from paceline.draft_budget.acceptance_calibration import (
    count,
    new_calibration,
    path_probabilities,
)
from paceline.draft_budget.drafting_backoff import DraftingBackoff
from paceline.draft_budget.step_costs import StepCosts, flatten_chains, optimal_lengths
from paceline.integrations.vllm.guarded import GuardedDrafter
from paceline.integrations.vllm.metrics import DraftingMetrics
from paceline.integrations.vllm.options import EngineFacts
from paceline.integrations.vllm.requests import BatchRow, Requests, TrackedRequest
from paceline.integrations.vllm.settings import ProposerSettings

_SETTINGS = ProposerSettings()


class RowDrafting:
    """Drafts tokens for every row of a vLLM batch, with one drafter.

    Args:
        drafter: Drafter, wrapped to isolate its errors.
        facts: Properties of vLLM's engine.
        meter: Prometheus metrics to update.
        full: Whether to pass every draft to vLLM at full length, regardless of its cost.
    """

    def __init__(
        self, drafter: GuardedDrafter, facts: EngineFacts, meter: DraftingMetrics, full: bool
    ) -> None:
        self._drafter, self._facts, self._meter, self._full = drafter, facts, meter, full
        self._costs, self._reliability, self._gate = (
            StepCosts(),
            new_calibration(),
            DraftingBackoff(),
        )
        self._requests = Requests()
        self._before: tuple[set[int], int, float] | None = (
            None  # drafted requests, draft tokens, end time
        )
        self._gap = 0

    def __len__(self) -> int:
        return len(self._requests)

    def warm_up(self) -> None:
        """Draft for a short text, to compile all kernels before the first request."""
        request = TrackedRequest(BatchRow(0, np.array([1, 2, 1, 2, 1, 0], dtype=np.int32), 1))
        self._drafter.start(request.request)
        chain = self._drafter.propose([request.request], [4])[0].best_chain()
        self._drafter.stop(request.request)
        chains, no_tokens = flatten_chains([chain]), np.zeros(0, dtype=np.int64)
        count(new_calibration(), chains, no_tokens, np.zeros(2, dtype=np.int64))
        path_probabilities(self._reliability, chains)
        # `sssd` sorts recent answers between steps, with a kernel that this line compiles.
        Shard.in_memory([np.zeros(2, dtype=np.uint32)], vocab_size=1, width=4)

    def step(self, rows: Sequence[BatchRow], others: int, begin: float) -> list[list[int]]:
        """Process the new tokens of `rows`, and return a draft for each row.

        Args:
            rows: Rows with new tokens.
            others: Number of rows whose prompts are still being computed.
            begin: Time at which vLLM called the proposer, in seconds (`time.perf_counter`).
        """
        claimed = self._requests.claim(rows, self._gap)
        self._note_costs(claimed, others, begin)
        active: list[tuple[BatchRow, TrackedRequest]] = []
        drafted: list[tuple[DraftTree, list[int]]] = []
        for row, known_request in zip(rows, claimed, strict=True):
            request = self._begun(row) if known_request is None else known_request
            if self._extend(request, row, drafted):
                active.append((row, request))
        self._count(drafted)
        # vLLM skips drafting while any row is close to its maximum length, so the proposer may
        # miss tokens (docs/guides/vllm.md).
        longest = max((len(row.text) for row in rows), default=0)
        self._gap = (
            (self._facts.most + 1) ** 2
            if longest + 2 * (self._facts.most + 1) > self._facts.context
            else 0
        )
        self.forget(self._requests.record_rows({row.index: request for row, request in active}))
        self._draft([request for _, request in active])
        drafts = {row.index: request.chain.token_ids[: request.sent] for row, request in active}
        return [[*drafts.get(row.index, ())] for row in rows]

    def done(self, now: float) -> None:
        """Record the time at which drafting ended.

        The time between the end of drafting and the next call is spent in vLLM.

        Args:
            now: Current time in seconds (`time.perf_counter`).
        """
        if self._before is not None:
            self._before = *self._before[:2], now

    def forget(self, requests: Iterable[TrackedRequest] | None = None) -> None:
        """Treat the given requests, or all requests by default, as finished."""
        for request in [*self._requests] if requests is None else requests:
            self._requests.drop(request)
            self._drafter.stop(request.request)

    def _begun(self, row: BatchRow) -> TrackedRequest:
        request = TrackedRequest(row)
        self._drafter.start(request.request)
        return request

    def _extend(
        self, request: TrackedRequest, row: BatchRow, drafted: list[tuple[DraftTree, list[int]]]
    ) -> bool:
        """Append new tokens and notify the drafter; return whether the request continues.

        Args:
            request: Request to extend.
            row: Row of the request.
            drafted: List to which this method adds the request's draft chain and new tokens.
        """
        new_tokens = row.text[len(request) :].tolist()
        end_index = next(
            (index for index, token in enumerate(new_tokens) if token in self._facts.eos), None
        )
        run = request.extend(
            row, len(row.text) if end_index is None else len(request) + end_index + 1
        )
        chain, sent = request.chain, request.chain.first(request.sent)
        request.chain, request.sent = EMPTY_TREE, 0
        if len(chain):
            drafted.append((chain, run))
        if len(new_tokens) > row.new:  # vLLM ran steps without calling the proposer for drafts
            sent = EMPTY_TREE
        accepted = min(row.new - 1, len(sent))
        self._meter.accepted.inc(accepted)
        self._meter.tokens.observe(row.new)
        self._drafter.observe(
            Outcome(
                request.request,
                sent,
                [*range(min(accepted, len(run) - 1))],
                run,
                _target_tokens(run, len(sent)),
            )
        )
        if end_index is not None:
            self.forget([request])
        return end_index is None

    def _count(self, drafted: list[tuple[DraftTree, list[int]]]) -> None:
        """Update the calibration of acceptance probabilities from drafts and new tokens."""
        if drafted:
            new_tokens = np.array([token for _, run in drafted for token in run], dtype=np.int64)
            offsets = np.cumsum([0, *(len(run) for _, run in drafted)], dtype=np.int64)
            chains = flatten_chains([chain for chain, _ in drafted])
            count(self._reliability, chains, new_tokens, offsets)

    def _draft(self, requests: list[TrackedRequest]) -> None:
        """Draft a chain for each request, and choose how many tokens vLLM verifies."""
        self._before = None
        if requests and (self._full or self._gate.opens()):
            for request in requests:  # limits the depth to vLLM's draft length
                seq = request.request
                seq.max_length = min(self._facts.context, len(seq) + self._facts.most + 1)
            limit = node_limit(
                self._drafter.drafter.node_rule,
                len(requests),
                max(_SETTINGS.max_nodes, self._facts.most),
            )
            trees = self._drafter.propose(
                [request.request for request in requests], [limit] * len(requests)
            )
            for request, tree in zip(requests, trees, strict=True):
                request.chain = tree.best_chain().first(max(0, request.request.remaining - 1))
            for request, length in zip(requests, self._lengths(requests), strict=True):
                request.sent = length
            if any(len(request.chain) for request in requests):
                self._gate.note_cut(max(request.sent for request in requests))
        drafted = sum(request.sent for request in requests)
        self._meter.drafted.inc(drafted)
        self._before = {request.request.id for request in requests}, drafted, 0.0

    def _lengths(self, requests: list[TrackedRequest]) -> list[int]:
        if self._full:
            return [len(request.chain) for request in requests]
        chains = flatten_chains([request.chain for request in requests])
        values = self._costs.token_values([len(request.request.output_ids) for request in requests])
        gains = path_probabilities(self._reliability, chains) * np.repeat(
            values, np.diff(chains.starts)
        )
        return optimal_lengths(gains, chains.starts, self._costs.seconds(len(requests), len(gains)))

    def _note_costs(
        self, claimed: Sequence[TrackedRequest | None], others: int, begin: float
    ) -> None:
        """Record the duration of the last step if that step only decoded tokens."""
        if self._before is None or others:
            return
        present, drafted, end = self._before
        if (
            present
            and {request.request.id for request in claimed if request is not None} == present
            and None not in claimed
        ):
            self._costs.note(len(present), drafted, begin - end)


def _target_tokens(run: list[int], sent: int) -> list[int]:
    """Return the target's choices after the last token and after each drafted token.

    After a rejected token, the target's choices are unknown. The function repeats the last known
    choice instead.
    """
    return [*run, *[run[-1]] * (sent + 1 - len(run))][: sent + 1]
