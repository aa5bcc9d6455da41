"""Define when paceline trusts, checks and replaces its timings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Thresholds for timings, mainly for measuring and checking cost curves.

    A cost curve states how long a forward pass takes for each number of rows (tokens). The defaults
    were chosen with SmolLM2-135M on two cores that other programs also used.

    Attributes:
        min_rounds: Minimum number of repeats of a measurement.
        max_rounds: Maximum number of repeats if the two shortest repeats keep disagreeing.
        agreement: Maximum relative difference at which the two shortest repeats agree.
        quiet_wait: Maximum fraction of time spent waiting for a processor in an undisturbed
            measurement.
        quiet_spread: Maximum relative interquartile range of the repeats in an undisturbed
            measurement.
        check_rows: Numbers of rows that a check of a cost curve times; the first must be 1.
        check_rounds: Number of repeats of a check.
        check_seconds: Maximum expected duration of a check, in seconds. paceline does not check the
            curves of slower models.
        max_check_share: Maximum time for the checks of a curve, as a fraction of the time for which
            the curve is in use.
        max_cost_error: Maximum relative difference between a curve and the costs that a check
            measures. If the difference is larger, the check does not confirm the curve.
        loaded_pause_s: Seconds for which a curve loaded from disk is used before paceline first
            checks the curve. The pause keeps the check from delaying the first token.
        first_pause_s: Seconds for which a curve that paceline has measured is used before paceline
            first checks the curve. Each later pause is twice as long as the previous one.
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
