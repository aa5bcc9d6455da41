"""Define the settings of `check_drafter`, which tests the drafter contract."""

from __future__ import annotations

BUDGETS = (0, 1, 2, 5, 40)  # Node limits that the check chooses from.
# Number of built-in prompts for the check. It needs at least MIN_PROMPTS: one request continues,
# one stops before its first draft, one stops midway, and one stops twice.
NUM_PROMPTS = 5
MIN_PROMPTS = 4
PROMPT_TOKENS = 64  # Length of these prompts, in tokens.
STEPS_BEFORE_ABORT = 3  # Number of steps for the request that stops midway.
ABORT_STEPS = 8  # Number of steps for the requests that continue.
BUDGET_SEED, ABORT_SEED = 3, 2  # Random seeds for the node limits.
