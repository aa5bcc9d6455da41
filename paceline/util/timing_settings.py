"""Settings of timings: when they are trusted, checked and replaced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Thresholds for timings.

    Defaults were chosen on two shared cores with SmolLM2-135M.

    Attributes:
        min_rounds: Minimum repeats of a measurement.
        max_rounds: Maximum repeats, while the two shortest disagree.
        agreement: Relative difference up to which the two shortest repeats agree.
        quiet_wait: Maximum share of time without a processor in a quiet measurement.
        quiet_spread: Maximum relative distance between quartiles of repeats in a quiet measurement.
        check_rows: Batch sizes, in tokens, that a check of a cost curve times; the first is 1.
        check_rounds: Repeats of a check.
        check_seconds: Maximum expected seconds of a check; slower models are not checked.
        max_cost_error: Maximum relative difference in the cost of rows that confirms a curve.
        first_pause_s: Seconds of use until a curve is checked again. Each later pause is twice as
            long.
        disturbed_pause_s: First pause for a disturbed curve; its pauses grow up to `first_pause_s`.
        renewal_seconds: Maximum seconds of a measurement that replaces a curve in use.
        load_drop: Fall of the load average after which disturbed kernels, or a slow model, are
            timed again.
    """

    min_rounds: int = 3
    max_rounds: int = 9
    agreement: float = 0.03
    quiet_wait: float = 0.05
    quiet_spread: float = 0.1
    check_rows: tuple[int, ...] = (1, 8, 32)
    check_rounds: int = 3
    check_seconds: float = 1.0
    max_cost_error: float = 0.15
    first_pause_s: float = 60.0
    disturbed_pause_s: float = 5.0
    renewal_seconds: float = 2.0
    load_drop: float = 0.5


TIMING = TimingSettings()
