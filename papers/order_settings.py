"""Define settings for the order of prompts (Zhao et al. 2024, section 3.3)."""

from __future__ import annotations

CONSECUTIVE = (20, 10, 4, 1)  # Consecutive prompts of a task, of the 20 of each task.
TASK_SIZE = CONSECUTIVE[0]
