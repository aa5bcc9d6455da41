"""Record why the draft budget kept or dropped each draft node in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.core.flat_trees import Floats
from paceline.draft_budget.acceptance_calibration import path_probabilities
from paceline.draft_budget.budgeted_drafts import BudgetedDrafts
from paceline.draft_budget.node_selection import NodeSelector

VERIFIED = "verified: among the nodes with the most tokens per second"
PADDING = "verified: other trees of the step are as wide, so the row is padded anyway"
TOO_EXPENSIVE = "left out: more nodes yield fewer tokens per second"
WHOLE = "verified: the tree has no confidences, or was sampled, so it is not cut"
NO_BUDGET = "verified: the drafter does not use the budget"
NOT_ALLOWED = "no draft: the drafter is paused, or the request allows no nodes"
NOT_PROPOSED = "no draft: the drafter proposed no nodes"


class NodeDecision(NamedTuple):
    """The budget's decision about one draft node.

    Attributes:
        drafter: Name of the drafter.
        request_id: Id of the request.
        node: Index of the node in the proposed tree; -1 if there is no tree.
        token_id: Token of the node; -1 if there is no tree.
        probability: Calibrated probability that the node is accepted if its parent is accepted;
            None if the tree cannot be cut.
        path_probability: Calibrated probability that the whole path to the node is accepted. This
            probability equals the expected number of tokens that the node adds.
        price_s: Seconds that the node's unit adds to the step. In a ragged batch, a unit is one
            node; in a padded batch, a unit is one node of every tree.
        verified: Whether the target verifies the node.
        reason: Reason for the decision, as text.
    """

    drafter: str
    request_id: int
    node: int
    token_id: int
    probability: float | None
    path_probability: float | None
    price_s: float
    verified: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StepDecision:
    """The budget's decisions in one step.

    Attributes:
        num_requests: Number of requests in the forward pass.
        plain_s: Expected duration of the step without drafts, in seconds.
        step_s: Expected duration of the step with the verified nodes, in seconds.
        nodes: One decision for each proposed node, and one for each request without a draft.
    """

    num_requests: int
    plain_s: float
    step_s: float
    nodes: list[NodeDecision]

    @property
    def num_verified(self) -> int:
        """Number of draft nodes that the target verifies."""
        return sum(node.verified for node in self.nodes)

    def __str__(self) -> str:
        lines = [
            f"{self.num_requests} requests, {self.num_verified} draft nodes;"
            f" {self.plain_s * 1e3:.3g} ms without drafts, {self.step_s * 1e3:.3g} ms with them"
        ]
        for node in self.nodes:
            chance = "" if node.path_probability is None else f" path {node.path_probability:.3f}"
            lines.append(
                f"  {node.drafter} request {node.request_id} node {node.node}"
                f" token {node.token_id}{chance} price {node.price_s * 1e3:.3g} ms: {node.reason}"
            )
        return "\n".join(lines)


def decide_step(
    selector: NodeSelector,
    all_drafts: Sequence[BudgetedDrafts],
    seconds: Floats,
    num_units: int,
) -> StepDecision:
    """Return the draft budget's decisions in a step whose trees have been cut.

    The unit of the budget is one node in a ragged batch, and one node of every tree in a padded
    batch.

    Args:
        selector: Node selector that cut the trees.
        all_drafts: Drafts of the step, after the cut.
        seconds: Expected duration of the step with 0, 1, ... units, in seconds.
        num_units: Number of units that are left after the cut.
    """
    nodes: list[NodeDecision] = []
    for drafts in all_drafts:
        nodes += _undrafted(drafts)
        if drafts.flat is None:
            nodes += _whole(drafts, seconds)
        else:
            nodes += _cut(selector, drafts, seconds)
    num_requests = sum(len(drafts.proposed.batch.requests) for drafts in all_drafts)
    return StepDecision(num_requests, float(seconds[0]), float(seconds[num_units]), nodes)


def _undrafted(drafts: BudgetedDrafts) -> list[NodeDecision]:
    batch = drafts.proposed.batch
    limits = {
        request.id: limit for request, limit in zip(batch.requests, batch.max_nodes, strict=True)
    }
    return [
        NodeDecision(
            drafts.state.drafter.name,
            request.id,
            *(-1, -1, None, None, 0.0, False),
            NOT_PROPOSED if limits[request.id] else NOT_ALLOWED,
        )
        for request, tree in zip(drafts.ready, drafts.proposed.trees, strict=True)
        if not len(tree)
    ]


def _whole(drafts: BudgetedDrafts, seconds: Floats) -> list[NodeDecision]:
    reason = NO_BUDGET if drafts.state.stats is None else WHOLE
    prices = np.diff(seconds)
    return [
        NodeDecision(
            drafts.state.drafter.name,
            request.id,
            node,
            token_id,
            None,
            None,
            float(prices[min(node, len(prices) - 1)]),
            True,
            reason,
        )
        for request, tree in zip(drafts.ready, drafts.proposed.trees, strict=True)
        for node, token_id in enumerate(tree.token_ids)
    ]


def _cut(selector: NodeSelector, drafts: BudgetedDrafts, seconds: Floats) -> list[NodeDecision]:
    assert drafts.flat is not None
    assert drafts.state.stats is not None
    paths = path_probabilities(drafts.state.stats.acceptance_calibration, drafts.flat)
    units, prices = selector.entry_units(drafts), np.diff(seconds)
    nodes = []
    for row, (request, tree) in enumerate(zip(drafts.ready, drafts.proposed.trees, strict=True)):
        first, width = int(drafts.flat.starts[row]), len(drafts.trees[row])
        for node, token_id in enumerate(tree.token_ids):
            path = float(paths[first + node])
            above = 1.0 if tree.parents[node] < 0 else float(paths[first + tree.parents[node]])
            price = float(prices[units[first + node]])
            is_padding = node < selector.num_free_units
            reason = TOO_EXPENSIVE if node >= width else PADDING if is_padding else VERIFIED
            nodes.append(
                NodeDecision(
                    drafts.state.drafter.name,
                    request.id,
                    node,
                    token_id,
                    path / above if above else 0.0,
                    path,
                    0.0 if is_padding else price,
                    node < width,
                    reason,
                )
            )
    return nodes
