"""Define constants and option types that several packages share.

Of these constants, only the limits on sampling parameters can affect an answer.
"""

from __future__ import annotations

from typing import Literal

from paceline.core.node_rule import NodeRule

# Default maximum number of a request's pending tokens in one forward pass (chunked prefill).
PREFILL_CHUNK = 512

# The same limit on CUDA. On an H100, 4,096 tokens of an 8 B model take 0.18 s in chunks of 2,048,
# and 0.22 to 0.32 s in chunks of 512.
PREFILL_CHUNK_ON_CUDA = 2048

# True, False, or "auto": on if a check at load time shows a cost under 5 %.
BatchInvariant = bool | Literal["auto"]
BATCH_INVARIANT: BatchInvariant = "auto"

# True, False, or "auto": on CUDA only.
FixedShapes = bool | Literal["auto"]

# "raise": an error in a drafter ends its requests; "plain": they continue without drafts.
OnDrafterError = Literal["raise", "plain"]

# Number of draft nodes that drafters search for if the draft budget then selects among them.
WITH_BUDGET = NodeRule(max_nodes=48, batch_nodes=256, min_nodes=4)

# Maximum absolute values for `SamplingParams.logit_bias` and the penalties, as in the OpenAI API.
MAX_LOGIT_BIAS = 100.0
MAX_PENALTY = 2.0

# Number of tree shapes whose depths and masks are cached; drafters often repeat shapes.
CACHED_TREE_SHAPES = 512
