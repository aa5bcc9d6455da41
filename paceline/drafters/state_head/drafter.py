"""Draft trees with a head that reads the target's hidden states, such as EAGLE-3.

The head first reads the tokens that the target chose, each with the hidden states from which the
target chose it. The tree then grows level by level, as with a draft model. Drafts are
deterministic, so for a given seed, the text equals that of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.drafter import Drafter, Outcome
from paceline.core.hidden_state_log import HiddenStateLog
from paceline.core.node_rule import NodeRule
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.draft_model.draft_calibration import DraftCalibration
from paceline.drafters.draft_model.draft_tree_builder import (
    DraftForwardInput,
    GuessTree,
    NodePrediction,
)
from paceline.drafters.shared.trees import outcome_of
from paceline.drafters.state_head.options import StateHeadOptions
from paceline.drafters.state_head.settings import MAX_NODES, MIN_BATCH_NODES
from paceline.errors import ConfigError
from paceline.state_heads.find import find_head
from paceline.state_heads.head import StateHead
from paceline.state_heads.text import ROOT, HeadNode, HeadText

__all__ = ["StateHeadDrafter", "StateHeadOptions"]


@dataclass(slots=True)
class _HeadRequest:
    """A request's text in the head's cache, its calibration, and its newest tree.

    Attributes:
        text: The request's text in the head's cache.
        calibration: Acceptance rates of the head's most likely tokens in this request.
        tree: Newest tree, most likely paths first.
        first_choice_probs: The head's probability for each node that was its most likely token
            after the parent; None for other nodes.
    """

    text: HeadText
    calibration: DraftCalibration = field(default_factory=DraftCalibration)
    tree: DraftTree = EMPTY_TREE
    first_choice_probs: list[float | None] = field(default_factory=list)


class StateHeadDrafter(Drafter):
    """Drafts a tree per request with a head (EAGLE-3, DFlash or MTP).

    Args:
        options: Options of the drafter.
        head: Published head. It is loaded when the drafter is attached to a target.
    """

    name = "state_head"
    keeps_tokens = True
    needs_trained = True
    node_rule = NodeRule(MAX_NODES, batch_nodes=MAX_NODES, min_nodes=MIN_BATCH_NODES)
    Options = StateHeadOptions

    def __init__(self, options: StateHeadOptions, head: StateHead) -> None:
        self._options, self._head = options, head
        self.budget = options.budget
        self._is_attached = False
        self._records: dict[int, _HeadRequest] = {}  # by request

    @classmethod
    def build(cls, options: StateHeadOptions) -> StateHeadDrafter:
        """Build the drafter from its options.

        Raises:
            ConfigError: The options name no head, or the folder does not contain a head.
        """
        if options.head is None:
            raise ConfigError(
                "state_head: got no head; expected the folder or hub id of an EAGLE-3 or DFlash"
                " head that was trained for the target, or mtp. Choose one with"
                " state_head:head=FOLDER."
            )
        return cls(options, find_head(options.head))

    @property
    def forward_seconds(self) -> float:
        """Total seconds spent in forward passes of the head."""
        return self._head.timer.seconds if self._is_attached else 0.0

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Load the head for its target.

        Raises:
            ConfigError: The head was not made for this target.
            UnsupportedModelError: The target's embedding or LM head cannot be read.
        """
        self._head.attach(target)
        self._is_attached = True

    def start(self, request: Request) -> None:
        """Reserve a slot in the head's cache, and start recording target hidden states."""
        if self._is_attached:
            request.states = HiddenStateLog(self._head.layers)
            self._records[request.id] = _HeadRequest(
                self._head.open(request.max_length + MAX_NODES)
            )

    def stop(self, request: Request) -> None:
        """Free the request's slot in the head's cache."""
        record = self._records.pop(request.id, None)
        if record is not None:
            self._head.close(record.text)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Update each request's measured acceptance rates with the outcome of the step."""
        for outcome in outcomes:
            record = self._records.get(outcome.request.id)
            if record is not None and record.tree.token_ids:
                record.calibration.learn(
                    outcome_of(record.tree, outcome), record.first_choice_probs
                )

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft trees for the requests whose tokens the head has completely processed.

        A request whose newest hidden states have not been recorded gets an empty tree.
        """
        trees = [EMPTY_TREE] * len(requests)
        for request in requests:
            if request.id in self._records:
                self._records[request.id].tree = EMPTY_TREE
        if not any(max_nodes):
            return trees
        self._read([request for request in requests if request.id in self._records])
        rows = [
            row
            for row, request in enumerate(requests)
            if request.id in self._records
            and max_nodes[row] > 0
            and self._records[request.id].text.end == len(request)
        ]
        if rows:
            drafted = [requests[row] for row in rows]
            grown = self._grow(drafted, [max_nodes[row] for row in rows])
            for row, request, tree in zip(rows, drafted, grown, strict=True):
                record = self._records[request.id]
                record.tree, record.first_choice_probs = tree.finished()
                trees[row] = record.tree
        return trees

    def _read(self, requests: Sequence[Request]) -> None:
        """Process the tokens whose target hidden states were recorded in the last step."""
        texts: list[HeadText] = []
        token_ids: list[list[int]] = []
        states: list[Tensor] = []
        for request in requests:
            text = self._records[request.id].text
            assert request.states is not None, "set in `start`"
            first, known = request.states.known(text.end, len(request))
            if not len(known):
                continue
            if first != text.end:  # the states of the preceding tokens are not known
                text.restart(first)
            texts.append(text)
            token_ids.append(request.token_ids[first : first + len(known)])
            states.append(known)
        if texts:
            self._head.read(texts, token_ids, states)
        for request in requests:
            assert request.states is not None, "set in `start`"
            request.states.forget(self._records[request.id].text.end)

    def _grow(self, requests: Sequence[Request], limits: list[int]) -> list[GuessTree]:
        """Grow one tree per request, level by level; each pass processes all requests.

        Args:
            requests: Requests to draft for.
            limits: Maximum number of nodes in each tree.
        """
        options = self._options
        max_depth = min(options.max_depth, self._head.max_depth or options.max_depth)
        records = [self._records[request.id] for request in requests]
        texts = [record.text for record in records]
        trees = [
            GuessTree(
                record.calibration,
                limit,
                min(max_depth, request.remaining - 1),
                options.branch_threshold,
                options.stop_threshold,
            )
            for record, request, limit in zip(records, requests, limits, strict=True)
        ]
        while any(newest := [tree.newest() for tree in trees]):
            nodes = [
                [_head_node(tree, node, request) for node in wanted]
                for tree, wanted, request in zip(trees, newest, requests, strict=True)
            ]
            tokens, probs = self._head.predict(texts, nodes)
            predictions = (
                NodePrediction(likeliest[0], likeliest, chances)
                for likeliest, chances in zip(tokens.tolist(), probs.tolist(), strict=True)
            )
            for tree, wanted in zip(trees, newest, strict=True):
                asked = DraftForwardInput(EMPTY_TREE, list(wanted), list(range(len(wanted))))
                tree.learn_answers(asked, list(islice(predictions, len(wanted))))
        return trees


def _head_node(tree: GuessTree, node: int, request: Request) -> HeadNode:
    if node == ROOT:
        return HeadNode(ROOT, request.token_ids[-1], ())
    return HeadNode(node, tree.token(node), tuple(tree.path(node)))
