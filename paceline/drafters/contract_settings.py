"""Settings of the check of the drafter contract."""

from __future__ import annotations

BUDGETS = (0, 1, 2, 5, 40)  # Node limits that the check draws from.
# Built-in prompts of the check. It needs at least MIN_PROMPTS: one request continues, one stops
# before its first draft, one stops midway, and one stops twice.
NUM_PROMPTS = 5
MIN_PROMPTS = 4
PROMPT_TOKENS = 64  # Length of these prompts.
STEPS_BEFORE_ABORT = 3  # Steps of the request that stops midway.
ABORT_STEPS = 8  # Steps of the requests that continue.
BUDGET_SEED, ABORT_SEED = 3, 2  # Random seeds of the node limits.
