"""Pause drafters that save no time, and retry them in bursts.

A burst is a short trial. If the requests in a batch can draft separately, only a few of them draft
at the start of the burst. Once their drafts save time, all requests draft.

If the draft budget can cut a drafter's trees, the drafter drafts in most steps, without bursts. If
the budget keeps cutting the trees to nothing, the drafter skips more and more steps between two
attempts. A drafter that requires a draft model needs bursts even if its trees can be cut.
"""

from __future__ import annotations

from paceline.draft_budget.averages import DecayingMean
from paceline.draft_budget.retry_pause import RetryPause
from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings


class DraftingBackoff:
    """Lets a drafter draft unless its drafts make decoding slower than plain decoding.

    The back-off judges a drafter by the token counts and the durations of whole steps. In contrast,
    `DraftModelGate` applies to drafters with several sources. It judges only the draft model, by
    the nodes that the model adds to a tree.

    Args:
        settings: Limits for short trials (bursts) and for pauses.
    """

    def __init__(self, settings: DraftBudgetSettings = DEFAULTS) -> None:
        self._settings = settings
        # Tokens per request in this burst, weighted by their cost in plain decoding steps.
        self._burst = DecayingMean(settings.burst_memory)
        self._steps = self._samples = 0
        self._pause = RetryPause(settings.min_pause_steps, settings.max_pause_steps)
        self._num_empty_steps = 0  # number of consecutive steps whose trees were cut to nothing
        self._tried = True  # the drafter is on trial: not yet known to save time

    def opens(self) -> bool:
        """Return whether drafting is allowed in the next step."""
        return not self._pause.waits()

    @property
    def is_dormant(self) -> bool:
        """Return whether the next trial is so far off that the drafter need not learn."""
        return self._pause.left >= self._settings.learning_steps

    @property
    def most(self) -> int | None:
        """Maximum number of requests that draft in a ragged batch (one without padding).

        None means all requests.
        """
        return self._settings.burst_requests if self._tried else None

    def admits(self, num_requests: int, ragged: bool) -> int:
        """Return the number of requests that draft in the next step.

        Args:
            num_requests: Number of requests in the batch.
            ragged: Whether the batch is ragged. A ragged forward pass has no padding, so each
                request adds only its own draft tokens.
        """
        if not self.opens():
            return 0
        return self.most if ragged and self.most is not None else num_requests

    def note(self, tokens: float, cost: float, num_requests: int = 1) -> None:
        """Record a step, to compare its tokens and its cost with plain decoding.

        Args:
            tokens: Number of new tokens per request.
            cost: Duration of the step, as a multiple of the duration of a step without drafts.
            num_requests: Number of requests that drafted; default 1.
        """
        self._burst.add(tokens, cost)
        self._steps += 1
        self._samples += num_requests
        early = self._steps < self._settings.min_burst_steps
        if early:
            if self._samples < self._settings.burst_requests or not self._is_hopeless:
                return
        elif self._samples < self._settings.burst_samples:
            return
        if self._burst.sum >= self._burst.weight:
            if self._tried:  # a few requests may cost less per request than all of them
                self._forget()
            else:
                self._pause.reset()
            self._tried = False
            return
        if not early and self._burst.sum + self._settings.burst_slack >= self._burst.weight:
            return
        self._pause.start(self._settings.early_pause_factor if early else 1)
        self._tried = True
        self._forget()

    def note_cut(self, nodes: int) -> None:
        """Record that the budget cut a step's trees to at most `nodes` nodes each."""
        self._tried = False
        self._num_empty_steps = 0 if nodes else self._num_empty_steps + 1
        self._pause.rest(
            min(
                max(0, self._num_empty_steps - self._settings.empty_steps),
                self._settings.max_rest_steps,
            )
        )

    @property
    def _is_hopeless(self) -> bool:
        """Return whether the drafts of the current trial cost much and gain little."""
        tokens, cost = self._burst.sum, self._burst.weight
        return cost > self._settings.high_cost and tokens - 1 < self._settings.min_gain_share * (
            cost - 1
        )

    def _forget(self) -> None:
        self._burst.reset()
        self._steps = self._samples = 0
