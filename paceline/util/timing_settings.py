"""Define when timings are trusted, checked and replaced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Thresholds for timings, in particular for measuring and checking cost curves.

    A cost curve states how long a forward pass takes, by the number of rows. The defaults were
    chosen with SmolLM2-135M on two cores that other programs also used.

    Attributes:
        min_rounds: Minimum number of repeats of a measurement.
        max_rounds: Maximum number of repeats if the two shortest repeats keep disagreeing.
        agreement: Maximum relative difference at which the two shortest repeats agree.
        quiet_wait: Maximum share of time spent waiting for a processor in an undisturbed
            measurement.
        quiet_spread: Maximum relative interquartile range of the repeats in an undisturbed
            measurement.
        check_rows: Batch sizes, in tokens, that are timed to check a cost curve; the first is 1.
        check_rounds: Number of repeats of a check.
        check_seconds: Maximum expected duration of a check, in seconds; slower models are not
            checked.
        max_check_share: Maximum time for the checks of a curve, as a share of the time for which
            the curve is in use.
        max_cost_error: Maximum relative difference between a cost in the check and the same cost in
            the curve. Up to this difference, the check confirms the curve.
        loaded_pause_s: Seconds for which a cost curve loaded from disk is used before the first
            check. The first token does not wait for this check.
        first_pause_s: Seconds for which a curve is used before the next check. Each later pause is
            twice as long.
        disturbed_pause_s: First pause for a curve whose measurement was disturbed, in seconds.
            Later pauses grow up to `first_pause_s`.
        renewal_seconds: Maximum duration of a measurement that replaces a curve in use, in
            seconds.
        load_drop: Decrease in the load average after which paceline repeats two kinds of timings:
            those of slow models, and disturbed timings of kernels.
    """

    min_rounds: int = 3
    max_rounds: int = 9
    agreement: float = 0.03
    quiet_wait: float = 0.05
    quiet_spread: float = 0.1
    check_rows: tuple[int, ...] = (1, 8, 32)
    check_rounds: int = 3
    check_seconds: float = 1.0
    max_check_share: float = 0.01
    max_cost_error: float = 0.15
    loaded_pause_s: float = 1.0
    first_pause_s: float = 60.0
    disturbed_pause_s: float = 5.0
    renewal_seconds: float = 2.0
    load_drop: float = 0.5


TIMING = TimingSettings()
