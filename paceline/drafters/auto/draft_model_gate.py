"""Decide per batch size whether running the draft model is worth its time.

Both trees of a step are known when the draft model runs: the tree without it and the tree with it.
The text that follows shows how far the other tree, cut to the same size, would have come. The
difference is the gain in tokens; it varies much less than the difference between two texts.

The gate runs the draft model if the gain, at the current seconds per token, exceeds its cost. It
uses an upper confidence bound (UCB) of the gain, so that a few trials do not switch the draft model
off. The cheaper the draft model is, the more evidence the gate requires. While the gate is closed,
it tries again with exponential back-off. The gain depends little on what the other sources expect,
so the gate ignores that (docs/one-tree.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.drafters.auto.settings import DraftModelGateSettings

_SETTINGS = DraftModelGateSettings()


class _Mean:
    """Track an exponentially decaying mean.

    Attributes:
        sum: Decayed sum of the values.
        weight: Decayed number of values; 0 before the first.
    """

    def __init__(self) -> None:
        self.sum = self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.sum, self.weight = (
            _SETTINGS.decay * self.sum + value,
            _SETTINGS.decay * self.weight + weight,
        )

    @property
    def value(self) -> float:
        return self.sum / self.weight


class DraftModelGate:
    """Switch the draft model on or off for steps with a given number of requests.

    Args:
        settings: Settings of the gate.
    """

    def __init__(self, settings: DraftModelGateSettings = _SETTINGS) -> None:
        self._settings = settings
        prior, weight = settings.prior_gain, settings.prior_weight
        # Gains in tokens: their sum, the sum of their squares, and their number.
        self._sum, self._squares, self._count = prior * weight, (prior**2 + 1) * weight, weight
        self._token, self._step = _Mean(), _Mean()  # seconds of a token, and of a step
        # The cost is a mean of logarithms, so that outliers such as a prompt change it little.
        self._cost = _Mean()
        # Steps since the last one with the draft model, and steps until the next trial.
        self._refused, self._pause = 0, settings.min_pause

    def asks(self, sequences: int) -> bool:
        """Return whether the next step should run the draft model."""
        if not self._cost.weight or not self._token.weight:
            return True
        cost = math.exp(self._cost.value)
        num_errors = max(1.0, self._settings.patience * self._step.value / cost)
        if sequences * self._gain_upper_bound(num_errors) * self._token.value >= cost:
            self._refused, self._pause = 0, self._settings.min_pause
            return True
        self._refused += 1
        if self._refused <= self._pause:
            return False
        self._refused, self._pause = 0, min(2 * self._pause, self._settings.max_pause)
        return True

    def _gain_upper_bound(self, num_errors: float) -> float:
        """Return the mean gain per request plus `num_errors` standard errors."""
        mean = self._sum / self._count
        return mean + num_errors * math.sqrt(
            max(0.0, self._squares / self._count - mean * mean) / self._count
        )

    def note(self, tokens: int, seconds: float) -> None:
        """Record the new tokens and the seconds of a step, draft model included."""
        self._token.add(seconds, tokens)
        self._step.add(seconds)

    def record_cost(self, seconds: float) -> None:
        """Record the seconds that the draft model took."""
        self._cost.add(math.log(max(seconds, 1e-9)))

    def record_gain(self, tokens: int) -> None:
        """Record the tokens of a request less those that the other tree would have had."""
        if self._count >= self._settings.memory:
            self._sum, self._squares, self._count = (
                self._sum / 2,
                self._squares / 2,
                self._count / 2,
            )
        self._sum, self._squares, self._count = (
            self._sum + tokens,
            self._squares + tokens * tokens,
            self._count + 1,
        )


@dataclass(slots=True)
class _Open:
    """Track a step until the text shows how far the other tree would have come.

    Attributes:
        gate: Gate that records the gain.
        edges: Edges of the tree without the draft model.
        end: Text position after the tokens of the step.
        position: Text position after the last node that matched.
        node: Last node of the other tree that the text has followed; -1 is the root.
    """

    gate: DraftModelGate
    edges: dict[tuple[int, int], int]
    end: int
    position: int
    node: int = -1

    def follow_text(self, token_ids: Sequence[int], ended: bool) -> bool:
        """Follow the text along the other tree; return whether the gain is known now.

        Args:
            token_ids: Text of the request.
            ended: Whether the text is complete.
        """
        while self.position < len(token_ids):
            following = self.edges.get((self.node, token_ids[self.position]))
            if following is None:
                break
            self.node, self.position = following, self.position + 1
        if self.position == len(token_ids) and not ended:
            return False
        # the token that the target would have said after it
        behind = self.position < len(token_ids)
        self.gate.record_gain(self.end - (self.position + behind))
        return True


class DraftModelGates:
    """Hold one gate per number of requests, and the clock of the step."""

    def __init__(self) -> None:
        self._by_number: dict[int, DraftModelGate] = {}
        self._running: DraftModelGate | None = None
        self._others: dict[int, DraftTree] = {}  # by request id
        self._open: dict[int, list[_Open]] = {}  # by request id
        self._begun = self._seconds = 0.0

    @property
    def has_asked(self) -> bool:
        """Tell whether the newest step has run the draft model."""
        return self._seconds > 0

    def begin(self, others: dict[int, DraftTree], telling: bool) -> bool:
        """Begin a step, and return whether it runs the draft model.

        Args:
            others: Trees without the draft model by request id, likeliest nodes first.
            telling: Whether the time of the step counts; a step with prompts does not.
        """
        self._begun, self._others, self._seconds = perf_counter(), others, 0.0
        gate = self._by_number.setdefault(len(others), DraftModelGate())
        self._running = gate if telling else None
        return gate.asks(len(others))

    def asked(self) -> None:
        """Record that the draft model has finished."""
        self._seconds = perf_counter() - self._begun

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """End the step: record its time and follow the text of each request."""
        if self._running is None:
            return
        self._running.note(
            sum(len(one.new_token_ids) for one in outcomes), perf_counter() - self._begun
        )
        if self.has_asked:
            self._running.record_cost(self._seconds)
        for one in outcomes:
            request = one.request
            waiting = self._open.pop(request.id, [])
            if self.has_asked:
                tree, end = self._others[request.id], len(request.token_ids)
                edges = tree.edges(min(len(one.tree), len(tree)))
                waiting.append(_Open(self._running, edges, end, end - len(one.new_token_ids)))
            self._settle(request, waiting, ended=False)
        self._running = None

    def stop(self, request: Request) -> None:
        """Free the state of a request whose text is complete."""
        self._settle(request, self._open.pop(request.id, []), ended=True)

    def _settle(self, request: Request, waiting: list[_Open], ended: bool) -> None:
        left = [one for one in waiting if not one.follow_text(request.token_ids, ended)]
        if left:
            self._open[request.id] = left
