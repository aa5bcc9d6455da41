"""Define all settings of the draft budget, and state how the defaults were chosen."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

from paceline.errors import ConfigError

# Lengths of the texts before the measured rows of a cost curve, in tokens. `CostCurve` adds the
# cost of longer texts relative to the first length, so saved curves depend on this setting.
SHORT_TEXT, LONG_TEXT = 32, 512

# Distance between the ids of successive tokens of these texts. The texts of a prime stride hardly
# repeat a token, so a mixture of experts uses as many experts as for real text.
TOKEN_STRIDE = 7919


@dataclass(frozen=True, slots=True)
class DraftBudgetSettings:
    """Settings that decide how many draft nodes are verified, and when to draft.

    The defaults were chosen with SmolLM2-135M-Instruct (bfloat16, about 120 prompts) on CPUs with
    two cores. They have not been tuned for other models. Measured costs and acceptance rates adapt
    the budget to each model and machine.

    Attributes:
        bucket_edges: Acceptance calibration: edges between the confidence buckets, in ascending
            order, between 0 and 1.
        prior_trials: Acceptance calibration: weight of the drafter's own confidence, as a number
            of trials per bucket; above 0.
        calibration_memory: Acceptance calibration: number of trials in a bucket at which the
            bucket's counts are halved, so that newer trials count more; at least 1.
        gain_margin: Node selection: factor by which the time of a step with drafts is multiplied,
            so that gains within the error of the measured times do not count; at least 1.
        context_step: Node selection: the text length is rounded to a multiple of this number of
            tokens before the cost is looked up; at least 1.
        max_cached_costs: Node selection: number of looked-up costs to keep in memory; at least 1.
        correction_rate: Cost correction: weight of the newest step in the average ratio of a step's
            measured time to its time on the cost curve; in (0, 1]. The first steps have equal
            weights. Plain steps and steps with drafts have separate ratios.
        correction_forgetting: Cost correction: after each plain step, the ratio for steps with
            drafts moves towards the ratio for plain steps by this share of the difference; from 0
            to 1. After each step with drafts, the ratio for plain steps moves in the same way.
        early_forgetting: Cost correction: a ratio that was measured in n steps moves by the share
            `early_forgetting` / n if this share exceeds `correction_forgetting`; from 0 to 1.
        max_correction: Cost correction: maximum factor by which the cost curve is corrected; at
            least 1.
        outlier_steps: Cost correction: number of steps before outliers are limited; at least 1.
        confirming_steps: Cost correction: number of steps of each kind (with and without drafts)
            that are needed to confirm a cost curve from disk; at least 1.
        outlier_factor: Cost correction: maximum ratio of an outlier to the expected time; above 1.
        burst_samples: Back-off: number of drafts after which a burst (a short trial of the drafter)
            may end; at least 1. The drafts of all steps and requests in the burst count.
        min_burst_steps: Back-off: minimum number of steps before the mean speed of a burst is
            evaluated; at least 1.
        min_pause_steps: Back-off: number of steps without drafts after the first failed burst; at
            least 1.
        max_pause_steps: Back-off: maximum number of steps in a pause; each failed burst doubles the
            length of the next pause; at least `min_pause_steps`.
        empty_steps: Back-off: number of consecutive steps in which the budget may cut all trees to
            nothing before the drafter skips a step; 0 or more.
        max_rest_steps: Back-off: maximum number of consecutive steps that the drafter skips while
            the budget cuts all its trees to nothing; 0 or more.
        learning_steps: Back-off: number of steps before the next trial at which the drafter
            resumes learning from the target's predictions; at least 1.
        burst_slack: Back-off: number of tokens per request by which a burst may fall short of plain
            decoding before it ends; 0 or more.
        burst_memory: Back-off: factor by which each new step of a burst reduces the weight of the
            earlier steps; in (0, 1].
        burst_requests: Back-off: number of requests that draft at the start of a burst; at least
            1.
        high_cost: Back-off: a burst may end early if it takes longer than this number of plain
            decoding steps; at least 1.
        min_gain_share: Back-off: a burst above `high_cost` ends early if its gain is below this
            share of the gain at which the burst would break even; from 0 to 1.
        early_pause_factor: Back-off: factor by which a burst that ended early lengthens the next
            pause; at least 1.
        prefill_stall: Prefill chunks: maximum duration of a prefill forward pass between two decode
            steps, as a multiple of the duration of a decode step; above 0.
        first_chunk_tokens: Prefill chunks: number of tokens in the first chunk; at least 1.
        min_chunk_tokens: Prefill chunks: smallest chunk, in tokens; at least 1.
        prefill_rate: Prefill chunks: weight of the newest step in the average durations of a decode
            step and of a prompt token; in (0, 1].
        measured_rows: Cost curve: numbers of rows in the forward passes to time, in this order;
            the first is 1. CPU kernels process blocks of 4 or 16 rows, so the list also contains
            row counts that exceed a multiple of the block size by one. For a slow model, only the
            first counts in the list are timed. These counts are far apart, because the times of a
            few rows cannot predict the cost of a wide tree.
        measured_rows_long: Cost curve: row counts that are also timed after a long text.
        planned_rounds: Cost curve: number of times that each row count should be measured within
            the time limit; at least 1.
        measure_seconds: Cost curve: number of seconds after which no further row count is timed.
        max_measure_seconds: Cost curve: for a slow model, number of seconds after which no further
            row count is timed; at least `measure_seconds`.
        measure_forwards: Cost curve: a model is slow if this many forward passes of one row take
            longer than `measure_seconds`; at least 1.
        recorded_steps: Debugging: number of steps whose decisions `LLM.draft_decisions` contains; 0
            (default) records none.
    Raises:
        ConfigError: A value is out of range.
    """

    bucket_edges: tuple[float, ...] = (
        *(0.005, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.3),
        *(0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.98),
    )
    prior_trials: float = 20.0
    calibration_memory: float = 4000.0
    gain_margin: float = 1.03
    context_step: int = 64
    max_cached_costs: int = 1000
    correction_rate: float = 0.1
    correction_forgetting: float = 0.005
    early_forgetting: float = 0.05
    max_correction: float = 3.0
    outlier_steps: int = 4
    confirming_steps: int = 8
    outlier_factor: float = 1.5
    burst_samples: int = 8
    min_burst_steps: int = 2
    min_pause_steps: int = 32
    max_pause_steps: int = 512
    empty_steps: int = 4
    max_rest_steps: int = 32
    learning_steps: int = 4
    burst_slack: float = 0.4
    burst_memory: float = 0.94
    burst_requests: int = 4
    high_cost: float = 1.5
    min_gain_share: float = 0.5
    early_pause_factor: int = 4
    prefill_stall: float = 1.25
    first_chunk_tokens: int = 16
    min_chunk_tokens: int = 8
    prefill_rate: float = 0.3
    measured_rows: tuple[int, ...] = (
        *(1, 16, 64, 8, 32, 17, 4, 48, 12, 24, 128),
        *(33, 2, 96, 20, 5, 13, 9, 65, 3, 10, 6),
    )
    measured_rows_long: tuple[int, ...] = (1, 8, 16, 32, 64, 128)
    planned_rounds: int = 5
    measure_seconds: float = 10.0
    max_measure_seconds: float = 18.0
    measure_forwards: int = 40
    recorded_steps: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, tuple):
                _check(field.name, value, *_RANGES.get(field.name, _AT_LEAST_ONE))
        _check("max_pause_steps", self.max_pause_steps, self.min_pause_steps)
        _check("max_measure_seconds", self.max_measure_seconds, self.measure_seconds)
        edges = (0.0, *self.bucket_edges, 1.0)
        if any(low >= high for low, high in pairwise(edges)):
            raise ConfigError(
                f"draft_budget: bucket_edges: got {self.bucket_edges}; expected ascending numbers"
                " between 0 and 1."
            )
        if self.measured_rows[:1] != (1,) or min(self.measured_rows) < 1:
            raise ConfigError(
                f"draft_budget: measured_rows: got {self.measured_rows}; expected 1, then other"
                " positive numbers."
            )


_TINY, _INFINITE = 1e-9, float("inf")
_AT_LEAST_ONE = (1.0, _INFINITE)
_SHARE, _POSITIVE_SHARE = (0.0, 1.0), (_TINY, 1.0)
_RANGES = {
    "prior_trials": (_TINY, _INFINITE),
    "correction_rate": _POSITIVE_SHARE,
    "correction_forgetting": _SHARE,
    "early_forgetting": _SHARE,
    "empty_steps": (0.0, _INFINITE),
    "max_rest_steps": (0.0, _INFINITE),
    "burst_slack": (0.0, _INFINITE),
    "burst_memory": _POSITIVE_SHARE,
    "min_gain_share": _SHARE,
    "prefill_stall": (_TINY, _INFINITE),
    "prefill_rate": _POSITIVE_SHARE,
    "measure_seconds": (0.0, _INFINITE),
    "max_measure_seconds": (0.0, _INFINITE),
    "recorded_steps": (0.0, _INFINITE),
}


def _check(name: str, value: float, low: float, high: float = _INFINITE) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        upper = "or more" if high == _INFINITE else f"to {high:g}"
        raise ConfigError(f"draft_budget: {name}: got {value!r}; expected {low:g} {upper}.")


@dataclass(frozen=True, slots=True)
class StepCostSettings:
    """Settings of `StepCosts`, the linear model of step times.

    The model is ``seconds = a + b * requests + c * (1 if any draft) + d * draft tokens``. The
    defaults were tuned in vLLM, with SmolLM2-135M on CPUs with two cores.

    Attributes:
        window: Number of recent steps that the fit uses.
        refit_interval: Number of steps between two fits.
        outlier_factor: Multiple of the median duration above which a step is ignored.
        prior: Values of a, b, c and d before any measurement, as multiples of the median duration.
            These values assume that drafts are inexpensive, so that the engine tries drafting.
        prior_weight: Weight of each prior value, as a number of steps.
        margin: Factor by which the time of a step with drafts is multiplied, so that gains within
            the error of the fit do not count.
        lead_tokens: Lead, in tokens, that makes a request e (2.72) times less likely than another
            request to finish last.
        unknown_probability: Probability assumed for a draft token if the drafter reports none.
    """

    window: int = 256
    refit_interval: int = 8
    outlier_factor: float = 4.0
    prior: tuple[float, ...] = (1.0, 0.0, 0.0, 0.01)
    prior_weight: tuple[float, ...] = (0.01, 0.1, 1.0, 4.0)
    margin: float = 1.1
    lead_tokens: float = 2.5
    unknown_probability: float = 0.5


DEFAULTS = DraftBudgetSettings()
STEP_COST_DEFAULTS = StepCostSettings()
