"""Define constants and option types that several rooms share.

Only the limits of sampling parameters can change an answer.
"""

from __future__ import annotations

from typing import Literal

from paceline.core.node_rule import NodeRule

# Maximum pending tokens of a request in one forward pass (chunked prefill), unless set.
PREFILL_CHUNK = 512

# True, False, or "auto": on if a check at load time shows a cost under 5 %.
BatchInvariant = bool | Literal["auto"]
BATCH_INVARIANT: BatchInvariant = "auto"

# "raise": an error of a drafter ends its requests; "plain": they continue without drafts.
OnDrafterError = Literal["raise", "plain"]

# Draft nodes that drafters search for if the draft budget selects among them afterwards.
WITH_BUDGET = NodeRule(max_nodes=48, batch_nodes=256, min_nodes=4)

# Largest absolute values of `SamplingParams.logit_bias` and of its penalties, as in the OpenAI API.
MAX_LOGIT_BIAS = 100.0
MAX_PENALTY = 2.0

# Number of tree shapes whose depths and masks are cached; drafters repeat their shapes.
CACHED_TREE_SHAPES = 512
