"""Decide per batch size whether running the draft model saves time.

In a step that runs the draft model, the drafter builds two trees for each request. The first tree
includes the draft model's nodes, and the target verifies it. The second tree excludes the draft
model's nodes, and is cut to the size of the first tree. The text generated in this step and later
steps shows how many tokens of the second tree the target would have accepted. The gain is the
number of tokens accepted from the first tree, minus the number that would have been accepted from
the second. The gain varies much less between texts than either of these two numbers.

The cost is the time that the draft model takes. There is a separate gate for each number of
requests in a step. A gate is open, and runs the draft model, if

    gain * current seconds per token >= cost

The gate uses an upper confidence bound (UCB) of the gain, so that a few bad trials do not close the
gate. The faster the draft model is, the more evidence the gate requires before closing. A closed
gate tries the draft model again with exponential back-off. Trials take at most a fixed share of the
time, so the gate rarely tries a draft model that is slower than the target.

A new gate starts with a copy of the measurements of another gate, the one whose number of requests
is closest. The gain depends little on the confidence of the other draft sources, so gates ignore
this confidence (docs/development/design-notes.md).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.draft_budget.averages import DecayingMean
from paceline.draft_budget.retry_pause import RetryPause
from paceline.drafters.auto.settings import DraftModelGateSettings

_SETTINGS = DraftModelGateSettings()


class DraftModelGate:
    """Switches the draft model on or off for steps with a given number of requests.

    The gate judges only the draft model, by the nodes that it adds to a tree. In contrast,
    `DraftingBackoff` judges a whole drafter, by the number of tokens and the duration of each step.

    Args:
        settings: Prior gain, confidence bound, and lengths of the pauses between trials.
    """

    def __init__(self, settings: DraftModelGateSettings = _SETTINGS) -> None:
        self._settings = settings
        prior, weight = settings.prior_gain, settings.prior_weight
        # Gains in tokens: their sum, the sum of their squares, and their count.
        self._sum, self._squares, self._count = prior * weight, (prior**2 + 1) * weight, weight
        self._token_s, self._step_s = DecayingMean(settings.decay), DecayingMean(settings.decay)
        self._last_step_s = 0.0
        # The cost is a mean of logarithms, so outliers such as a prompt have little effect on it.
        self._log_cost = DecayingMean(settings.decay)
        self._pause = RetryPause(settings.min_pause, settings.max_pause)
        self._pause.start()

    def is_open(self, num_requests: int, may_try: bool = True) -> bool:
        """Return whether the next step should run the draft model.

        Args:
            num_requests: Number of requests in the step.
            may_try: Whether a closed gate may try the draft model in this step.
        """
        if not self._log_cost.weight or not self._token_s.weight:
            return True
        cost = math.exp(self._log_cost.value)
        num_errors = max(1.0, self._settings.patience * self._step_s.value / cost)
        if num_requests * self._gain_upper_bound(num_errors) * self._token_s.value >= cost:
            self._pause.reset()
            self._pause.start()
            return True
        if not may_try or self._pause.waits():
            return False
        self._pause.start()
        return True

    def _gain_upper_bound(self, num_errors: float) -> float:
        """Return the mean gain per request plus `num_errors` standard errors."""
        mean = self._sum / self._count
        return mean + num_errors * math.sqrt(
            max(0.0, self._squares / self._count - mean * mean) / self._count
        )

    def record_step(self, tokens: int, seconds: float) -> None:
        """Record how many tokens a step generated, and how long the step took.

        Args:
            tokens: Number of new tokens, over all requests.
            seconds: Duration of the step, including the draft model's time.
        """
        self._token_s.add(seconds, tokens)
        self._step_s.add(seconds)
        self._last_step_s = seconds

    def record_cost(self, seconds: float) -> None:
        """Record the time that the draft model took in the last step.

        Args:
            seconds: Duration in seconds.
        """
        self._log_cost.add(math.log(max(seconds, 1e-9)))
        others = max(self._last_step_s - seconds, self._settings.min_step_share * seconds)
        self._pause.at_least(math.ceil(seconds / (self._settings.trial_share * others)))

    def record_gain(self, tokens: int) -> None:
        """Record the tokens that one request gained because the draft model ran.

        Args:
            tokens: Number of additional accepted tokens; negative if the tree without the draft
                model's nodes would have been better.
        """
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
    """A pending measurement of the draft model's gain for one request and one step.

    The measurement compares the request's text with the tree that excludes the draft model's
    nodes. While all text so far matches a path of this tree, the comparison waits for more text.

    Attributes:
        gate: Gate that records the gain.
        edges: Child nodes in this tree, by parent node and token.
        end: Text position after the tokens that the step generated.
        position: Text position after the last node that matches the text.
        node: Last node that matches the text; -1 is the root.
    """

    gate: DraftModelGate
    edges: dict[tuple[int, int], int]
    end: int
    position: int
    node: int = -1

    def follow_text(self, token_ids: Sequence[int], ended: bool) -> bool:
        """Compare new tokens with the tree, and record the gain once it is known.

        A step that verified only this tree would have generated the tokens up to the last match,
        and one further token. The gain is the number of tokens that the step generated in addition
        to these.

        Args:
            token_ids: All tokens of the request.
            ended: Whether the text is complete.
        Returns:
            Whether the gain has been recorded.
        """
        while self.position < len(token_ids):
            following = self.edges.get((self.node, token_ids[self.position]))
            if following is None:
                break
            self.node, self.position = following, self.position + 1
        if self.position == len(token_ids) and not ended:
            return False
        # The target would have added one token after the last match.
        has_next = self.position < len(token_ids)
        self.gate.record_gain(self.end - (self.position + has_next))
        return True


class DraftModelGates:
    """Keeps one `DraftModelGate` per number of requests, and times the steps."""

    def __init__(self) -> None:
        self._by_number: dict[int, DraftModelGate] = {}
        self._running: DraftModelGate | None = None
        self._other_trees: dict[int, DraftTree] = {}  # by request id
        self._open: dict[int, list[_Open]] = {}  # by request id
        self._begun = self._seconds = 0.0

    @property
    def has_run_model(self) -> bool:
        """Return whether the most recent step ran the draft model."""
        return self._seconds > 0

    def begin(self, other_trees: dict[int, DraftTree], is_timed: bool) -> bool:
        """Start a step, and return whether the step runs the draft model.

        The gate for the number of requests is open if the draft model saves time. A closed gate
        sometimes tries the draft model again.

        Args:
            other_trees: Trees without the draft model's nodes, by request id. The most likely nodes
                come first.
            is_timed: Whether the step's duration is measured; false if the step contains prompts.
                If false, a closed gate does not try the draft model.
        """
        self._begun, self._other_trees, self._seconds = perf_counter(), other_trees, 0.0
        gate = self._gate_for(len(other_trees))
        self._running = gate if is_timed else None
        return gate.is_open(len(other_trees), may_try=is_timed)

    def _gate_for(self, num_requests: int) -> DraftModelGate:
        if num_requests not in self._by_number:
            nearest = min(self._by_number, key=lambda n: abs(n - num_requests), default=None)
            self._by_number[num_requests] = (
                DraftModelGate() if nearest is None else copy.deepcopy(self._by_number[nearest])
            )
        return self._by_number[num_requests]

    def model_finished(self) -> None:
        """Record the time at which the draft model finished."""
        self._seconds = perf_counter() - self._begun

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """Record the step's duration, and compare the new tokens with pending trees.

        Args:
            outcomes: Results of verifying the step's trees, one per request.
        """
        if self._running is None:
            return
        self._running.record_step(
            sum(len(outcome.new_token_ids) for outcome in outcomes), perf_counter() - self._begun
        )
        if self.has_run_model:
            self._running.record_cost(self._seconds)
        for outcome in outcomes:
            request = outcome.request
            waiting = self._open.pop(request.id, [])
            if self.has_run_model:
                tree, end = self._other_trees[request.id], len(request.token_ids)
                edges = tree.edges(min(len(outcome.tree), len(tree)))
                waiting.append(_Open(self._running, edges, end, end - len(outcome.new_token_ids)))
            self._resolve(request, waiting, ended=False)
        self._running = None

    def stop(self, request: Request) -> None:
        """Record pending gains of a request that has ended, and free its state."""
        self._resolve(request, self._open.pop(request.id, []), ended=True)

    def _resolve(self, request: Request, waiting: list[_Open], ended: bool) -> None:
        left = [step for step in waiting if not step.follow_text(request.token_ids, ended)]
        if left:
            self._open[request.id] = left
