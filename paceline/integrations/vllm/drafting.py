"""A step of vLLM's batch: who is there, what came true, what to draft, and how much of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.core.drafter import Outcome
from paceline.core.node_rule import node_limit
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.draft_budget.acceptance_calibration import count, new_calibration
from paceline.draft_budget.drafting_backoff import DraftingBackoff
from paceline.integrations.vllm.guarded import GuardedDrafter
from paceline.integrations.vllm.lengths import StepCosts, flatten, path_chances, paying_lengths
from paceline.integrations.vllm.metrics import DraftingMetrics
from paceline.integrations.vllm.options import EngineFacts
from paceline.integrations.vllm.requests import BatchRow, Requests, TrackedRequest

_MOST_NODES = 48  # of a tree that a chain is taken from


class RowDrafting:
    """Drafts for the rows of one engine with one drafter.

    Args:
        full: whether drafts are as long as they can be, whatever they cost.
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
            None  # who was drafted for, how many tokens in all, and when
        )
        self._gap = 0

    def __len__(self) -> int:
        return len(self._requests)

    def warm_up(self) -> None:
        """Draft once, so that what is compiled is compiled before the first request."""
        request = TrackedRequest(BatchRow(0, np.array([1, 2, 1, 2, 1, 0], dtype=np.int32), 1))
        self._drafter.start(request.request)
        chain = self._drafter.propose([request.request], [4])[0].best_chain()
        self._drafter.stop(request.request)
        chains, none = flatten([chain]), np.zeros(0, dtype=np.int64)
        count(new_calibration(), chains, none, np.zeros(2, dtype=np.int64))
        path_chances(self._reliability, chains)

    def step(self, rows: Sequence[BatchRow], others: int, begin: float) -> list[list[int]]:
        """Take in the new tokens of `rows` and draft for each.

        Args:
            others: rows of the batch whose prompts are still being computed.
            begin: when vLLM asked, by `time.perf_counter`.
        """
        claimed = self._requests.claim(rows, self._gap)
        self._note_costs(claimed, others, begin)
        going: list[tuple[BatchRow, TrackedRequest]] = []
        tried: list[tuple[DraftTree, list[int]]] = []
        for row, found in zip(rows, claimed, strict=True):
            request = self._begun(row) if found is None else found
            if self._goes_on(request, row, tried):
                going.append((row, request))
        self._count(tried)
        # vLLM asks for no drafts at all while a row is so close to its end (docs/vllm.md): tokens
        # may be missed.
        longest = max((len(row.text) for row in rows), default=0)
        self._gap = (
            (self._facts.most + 1) ** 2
            if longest + 2 * (self._facts.most + 1) > self._facts.context
            else 0
        )
        self.forget(
            self._requests.resolve_batch_invariance({row.place: request for row, request in going})
        )
        self._draft([request for _, request in going])
        drafts = {row.place: request.chain.token_ids[: request.sent] for row, request in going}
        return [[*drafts.get(row.place, ())] for row in rows]

    def done(self, now: float) -> None:
        """The drafts of a step are made, at `now`: what comes until the next one is vLLM's own
        time.
        """
        if self._before is not None:
            self._before = *self._before[:2], now

    def forget(self, requests: Iterable[TrackedRequest] | None = None) -> None:
        """These have ended; default: all."""
        for request in [*self._requests] if requests is None else requests:
            self._requests.drop(request)
            self._drafter.stop(request.request)

    def _begun(self, row: BatchRow) -> TrackedRequest:
        request = TrackedRequest(row)
        self._drafter.start(request.request)
        return request

    def _goes_on(
        self, request: TrackedRequest, row: BatchRow, tried: list[tuple[DraftTree, list[int]]]
    ) -> bool:
        """Append what is new, and say so to the drafter; returns whether more may come.

        Args:
            tried: filled with the chain of the step, if there was one, and the tokens that came.
        """
        fresh = row.text[len(request) :].tolist()
        ends = next((place for place, token in enumerate(fresh) if token in self._facts.eos), None)
        run = request.extend(row, len(row.text) if ends is None else len(request) + ends + 1)
        chain, sent = request.chain, request.chain.first(request.sent)
        request.chain, request.sent = EMPTY_TREE, 0
        if len(chain):
            tried.append((chain, run))
        if len(fresh) > row.new:  # steps were missed, and what they verified was not ours
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
                _said(run, len(sent)),
            )
        )
        if ends is not None:
            self.forget([request])
        return ends is None

    def _count(self, tried: list[tuple[DraftTree, list[int]]]) -> None:
        """Learn how much is to be thought of the chances that the drafter gives, from chains and
        what came.
        """
        if tried:
            came = np.array([token for _, run in tried for token in run], dtype=np.int64)
            ends = np.cumsum([0, *(len(run) for _, run in tried)], dtype=np.int64)
            count(self._reliability, flatten([chain for chain, _ in tried]), came, ends)

    def _draft(self, requests: list[TrackedRequest]) -> None:
        """Give each a chain, and say how much of it vLLM is to verify."""
        self._before = None
        if requests and (self._full or self._gate.opens()):
            for request in requests:  # no tree is deeper than vLLM takes
                seq = request.request
                seq.max_length = min(self._facts.context, len(seq) + self._facts.most + 1)
            limit = node_limit(
                self._drafter.drafter.node_rule, len(requests), max(_MOST_NODES, self._facts.most)
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
        chains = flatten([request.chain for request in requests])
        worth = self._costs.worth([len(request.request.output_ids) for request in requests])
        gains = path_chances(self._reliability, chains) * np.repeat(worth, np.diff(chains.starts))
        return paying_lengths(gains, chains.starts, self._costs.seconds(len(requests), len(gains)))

    def _note_costs(
        self, claimed: Sequence[TrackedRequest | None], others: int, begin: float
    ) -> None:
        """Learn what the step took that has just ended, where nothing but decoding was in it."""
        if self._before is None or others:
            return
        present, drafted, end = self._before
        if (
            present
            and {request.request.id for request in claimed if request is not None} == present
            and None not in claimed
        ):
            self._costs.note(len(present), drafted, begin - end)


def _said(run: list[int], sent: int) -> list[int]:
    """What the target said after the last token and after each of `sent` drafted ones; behind a
    wrong one it is not known.
    """
    return [*run, *[run[-1]] * (sent + 1 - len(run))][: sent + 1]
