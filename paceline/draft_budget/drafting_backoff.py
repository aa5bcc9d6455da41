"""Back off from drafters that do not pay: try them in bursts, ever more rarely.

A burst starts with a few requests of a batch where they can draft alone. Once their drafts pay, all
requests draft. A drafter whose trees the budget cuts drafts at most steps; once its trees were cut
to nothing for long, it drafts at one step in five.
"""

from __future__ import annotations

from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings


class DraftingBackoff:
    """Admit a drafter while it yields at least the tokens of plain decoding.

    Args:
        settings: limits of bursts and pauses.
    """

    def __init__(self, settings: DraftBudgetSettings = DEFAULTS) -> None:
        self._settings = settings
        # Tokens per request in this burst, and the plain decoding steps that they cost.
        self._tokens = self._cost = 0.0
        self._steps = self._samples = 0
        self._pause, self._next = 0, self._settings.min_pause_steps
        self._num_empty_steps = 0  # steps in a row whose trees were cut to nothing
        self._tried = True  # on trial: not yet known to pay

    def opens(self) -> bool:
        """Return whether the next step has drafts."""
        if self._pause > 0:
            self._pause -= 1
            return False
        return True

    @property
    def most(self) -> int | None:
        """Number of requests that draft where each has rows alone; None = all."""
        return self._settings.burst_requests if self._tried else None

    def admits(self, num_requests: int, packed: bool) -> int:
        """Return how many requests draft in the next step.

        Args:
            num_requests: requests of the batch.
            packed: the forward pads no rows, so that a request adds only its draft tokens.
        """
        if not self.opens():
            return 0
        return self.most if packed and self.most is not None else num_requests

    def note(self, tokens: float, cost: float, num_requests: int = 1) -> None:
        """Record a step with whole draft trees.

        Args:
            tokens: new tokens per request.
            cost: time of the step, in steps without drafts.
            num_requests: requests that drafted; default 1.
        """
        self._tokens = self._settings.burst_memory * self._tokens + tokens
        self._cost = self._settings.burst_memory * self._cost + cost
        self._steps += 1
        self._samples += num_requests
        early = self._steps < self._settings.min_burst_steps
        if early:
            hopeless = (
                self._cost > self._settings.high_cost
                and self._tokens - 1 < self._settings.min_gain_share * (self._cost - 1)
            )
            if self._samples < self._settings.burst_requests or not hopeless:
                return
        elif self._samples < self._settings.burst_samples:
            return
        if self._tokens >= self._cost:
            if self._tried:  # a few requests may cost less each than all
                self._forget()
            else:
                self._next = self._settings.min_pause_steps
            self._tried = False
            return
        if not early and self._tokens + self._settings.burst_slack >= self._cost:
            return
        self._pause = min(4 * self._next, self._settings.max_pause_steps) if early else self._next
        self._next = min(2 * self._pause, self._settings.max_pause_steps)
        self._tried = True
        self._forget()

    def _forget(self) -> None:
        self._tokens = self._cost = 0.0
        self._steps = self._samples = 0

    def note_cut(self, nodes: int) -> None:
        """Record a step whose trees were cut to at most `nodes` nodes."""
        self._tried = False
        self._num_empty_steps = 0 if nodes else self._num_empty_steps + 1
        self._pause = min(
            max(0, self._num_empty_steps - self._settings.empty_steps),
            self._settings.max_rest_steps,
        )
