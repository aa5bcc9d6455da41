"""Who may feed how many draft nodes in a step: the one place where that is decided. Drafters
obey `max_nodes`, no more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeRule:
    """How many draft nodes are worth their forward, as a drafter declares it.

    Attributes:
        most: nodes a sequence may have; None = as many as the engine allows.
        batch: nodes the sequences of one step share where there are several; None = each may have
            `most`.
        least: nodes a sequence may have in any batch.
    """

    most: int | None = None
    batch: int | None = None
    least: int = 1


# Of drafters whose trees the engine cuts to what pays (`paceline.draft_budget.budget`): so many are
# worth looking for.
WITH_BUDGET = NodeRule(most=48, batch=256, least=4)


def node_limit(rule: NodeRule, sequences: int, max_nodes: int) -> int:
    """Return the largest tree each of `sequences` may have in their common step, at most
    `max_nodes` nodes.
    """
    limit = max_nodes if rule.most is None else min(max_nodes, rule.most)
    if rule.batch is not None and sequences > 1:
        limit = min(limit, max(rule.least, rule.batch // sequences))
    return limit
