"""Hold the settings of drafting bursts and prefill chunks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftBudgetSettings:
    """Tune when a drafter is used, and how long prefill chunks are.

    No record says on which runs the defaults were fitted.

    Attributes:
        burst_samples: drafted requests after which a trial burst may end; at least 1.
        min_burst_steps: steps before a burst is judged by its mean; at least 1.
        min_pause_steps: steps without drafts after a first failed burst; at least 1.
        max_pause_steps: upper limit of the doubling pause, in steps; at least `min_pause_steps`.
        empty_steps: steps in a row whose trees were cut to nothing before one step is left out.
        max_rest_steps: steps in a row that are left out after such trees, at most.
        burst_slack: tokens per request that a burst may lose before a pause follows; 0 or more.
        burst_memory: weight of a burst's earlier steps, multiplied in at every step; in (0, 1].
        burst_requests: requests of a batch that a burst starts with; at least 1.
        high_cost: cost of a burst, in plain decoding steps, above which it may end early; over 1.
        min_gain_share: share of the break-even gain below which such a burst ends; in [0, 1].
        prefill_stall: longest prefill forward between two decode steps, in decode steps; over 0.
        first_chunk_tokens: tokens of the first prefill chunk; at least 1.
        min_chunk_tokens: smallest prefill chunk, in tokens; at least 1.
        prefill_rate: weight of the newest step in the measured prefill speed; in (0, 1].
    """

    burst_samples: int = 8
    min_burst_steps: int = 2
    min_pause_steps: int = 32
    max_pause_steps: int = 512
    empty_steps: int = 4
    max_rest_steps: int = 4
    burst_slack: float = 0.4
    burst_memory: float = 0.94
    burst_requests: int = 4
    high_cost: float = 1.5
    min_gain_share: float = 0.5
    prefill_stall: float = 1.25
    first_chunk_tokens: int = 16
    min_chunk_tokens: int = 8
    prefill_rate: float = 0.3


DEFAULTS = DraftBudgetSettings()
