"""Limit the number of draft nodes that a drafter may propose in one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A drafter's limits on the number of draft nodes that it proposes.

    Attributes:
        max_nodes: Maximum number of nodes per request; None means the engine's maximum.
        batch_nodes: Maximum total number of nodes in a step with several requests; None means
            `max_nodes` for each request.
        min_nodes: Number of nodes that each request may have even in the largest batch.
    """

    max_nodes: int | None = None
    batch_nodes: int | None = None
    min_nodes: int = 1


def node_limit(rule: NodeRule, num_requests: int, max_nodes: int) -> int:
    """Return the maximum number of nodes per request in a step.

    Args:
        rule: The drafter's limits.
        num_requests: Number of requests that use the drafter in the step.
        max_nodes: The engine's maximum per request.
    """
    limit = max_nodes if rule.max_nodes is None else min(max_nodes, rule.max_nodes)
    if rule.batch_nodes is not None and num_requests > 1:
        limit = min(limit, max(rule.min_nodes, rule.batch_nodes // num_requests))
    return limit
