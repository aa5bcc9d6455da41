"""The budget: how many draft nodes of a step are worth their forward, and whether drafting is worth
it at all.

A step of a batch costs t(rows) seconds and yields Y tokens: for each sequence 1 + the chances of
the paths to its nodes. Trees come with the likeliest path first, so their first nodes are the best
ones of that number, and closed under parents. Where a forward packs sequences, nodes are taken in
falling chance over the whole batch, whatever their drafters, as many as have the most tokens per
second. Where rows are padded to the widest tree, there is one width for the whole batch, chosen
likewise. 0 is plain decoding. The curve was measured behind two texts; what steps with and without
drafts really take corrects it, per number of sequences.

Trees without confidence are fed whole or not at all: their drafter is left out while it yields less
than plain decoding would in the same time, and tried again ever more rarely; once it has paid it is
back. So is one that always asks a model of its own, whose time has passed before there is a tree to
cut. In a batch of several drafters whole trees come on top of what is cut; where rows are padded,
up to their width the nodes of all others are free, and each pays for what is wider than the next
narrower one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.drafter_state import DrafterBatch
from paceline.draft_budget.node_selection import NodeSelector, PaddedSelector, RaggedSelector

_RATE = (
    0.1  # of the newest step in what steps were found to take; of the first ones all count alike
)
_MARGIN = 1.03  # of the seconds of steps with drafts: a gain that is smaller is no gain for sure
_FORGETTING = (
    0.005  # of that, with every step that tells nothing about it: what was too dear is tried again
)
_CONTEXTS = 64  # tokens by which texts before a step are told apart
_KEPT = 1000  # curves of steps
_MOST_OFF = 3.0  # a curve is believed to be off by no more
# steps after which one step counts for no more than so much off what the others took
_SURE, _JUMP = (4, math.log(1.5))


class _CostCorrection:
    """How much longer steps with drafts take than the curve says, compared with steps without; of
    one number of sequences.

    Args:
        like: of another number of sequences, to begin with.
    """

    def __init__(self, like: _CostCorrection | None = None) -> None:
        # Logarithms of seconds over those of the curve, without drafts and with them.
        self._off: list[float] = [0.0, 0.0] if like is None else [*like._off]
        self._steps: list[int] = (
            [0, 0] if like is None else [min(steps, 1) for steps in like._steps]
        )

    @property
    def factor(self) -> float:
        """Of the seconds of steps with drafts."""
        if not all(self._steps):
            return 1.0
        return min(_MOST_OFF, max(1 / _MOST_OFF, math.exp(self._off[1] - self._off[0])))

    @property
    def plain(self) -> float:
        """How much longer steps without drafts take than the curve says."""
        return min(_MOST_OFF, max(1 / _MOST_OFF, math.exp(self._off[0]))) if self._steps[0] else 1.0

    def note(self, drafted: bool, seconds: float, expected: float) -> None:
        """Take in a step."""
        off = math.log(max(seconds, 1e-9) / expected)
        if self._steps[drafted] >= _SURE:  # another program may have had the processor meanwhile
            off = min(self._off[drafted] + _JUMP, max(self._off[drafted] - _JUMP, off))
        self._steps[drafted] += 1
        self._off[drafted] += max(_RATE, 1 / self._steps[drafted]) * (off - self._off[drafted])
        if not drafted:
            self._off[1] += _FORGETTING * (self._off[0] - self._off[1])


class DraftBudget:
    """Decides for one engine.

    Args:
        curve: returns what a forward costs; called when it is first needed.
        renew: called between steps with the seconds of those since the last call; returns whether
            `curve` has another one now. None: the curve was given, and no clock corrects it.
    """

    def __init__(
        self,
        curve: Callable[[], CostCurve],
        renew: Callable[[float], bool] | None = lambda seconds: False,
    ) -> None:
        self._renew, self._used = renew, 0.0
        self._make_curve = curve
        self._curve: CostCurve | None = None
        self._costs: dict[tuple[int, int, int], NDArray[np.float64]] = {}
        self._context = 0  # tokens before the newest of a sequence, about, in the newest step
        self._paces: dict[int, _CostCorrection] = {}  # by the number of sequences
        self._pace: _CostCorrection | None = None  # the newest
        self._step: tuple[bool, float] | None = (
            None  # whether there are drafts, and seconds by the curve
        )

    @property
    def curve(self) -> CostCurve | None:
        """What a forward costs; None before it was needed."""
        return self._curve

    @property
    def plain_seconds(self) -> float | None:
        """What a step of one sequence takes without drafts: by the curve, corrected by such
        steps; None before it was needed.
        """
        if self._curve is None:
            return None
        return float(self._seconds(1, 1, 0)[0]) * (
            self._paces[1].plain if 1 in self._paces else 1.0
        )

    def cut(
        self, batches: Sequence[DrafterBatch], sequences: int, rows: int, packed: bool = False
    ) -> None:
        """Leave the trees of a step as many nodes as pay; those without confidence, and drawn ones,
        stay as they are.

        Args:
            sequences: that take part in the forward. rows: that it has without trees, padding
                included.
            packed: a node is a row; else each sequence has the rows of the widest tree.
        """
        for batch in batches:
            if batch.drafter_state.stats is not None:
                batch.flatten()
        offers = (RaggedSelector if packed else PaddedSelector)(batches, sequences)
        before = sum(request.cached for batch in batches for request in batch.requests)
        self._context = round(before / sequences / _CONTEXTS) * _CONTEXTS
        by_curve = self._seconds(rows, offers.unit, offers.most)
        if sequences not in self._paces:
            self._paces[sequences] = _CostCorrection(self._pace)
        self._pace = self._paces[sequences]
        # A prompt is fed anyway: its drafts are to be worth what they add, beside a step of plain
        # decoding. Where such steps take longer than the curve says, since each sequence has a text
        # of its own to read, drafts add less to them, but something.
        factor = self._pace.factor
        seconds = self._seconds(sequences, 1, 0)[0] + min(1.0, factor) * (by_curve - by_curve[0])
        seconds[1:] *= _MARGIN * max(1.0, factor)
        fed = offers.cut(seconds)
        offers.charge(seconds)
        # Prompts say nothing about decoding.
        plain = rows == sequences
        self._step = (fed > 0, float(by_curve[fed])) if plain else None
        if plain:
            _charge_drafting(
                batches, offers, seconds / seconds[0], float(seconds[0]) * self._pace.plain
            )

    def observe(self, batches: Sequence[DrafterBatch], seconds: float) -> None:
        """Count what came true of the trees that were cut last.

        Args:
            seconds: of the whole step, drafting included.
        """
        self._used += seconds
        if self._renew is not None and self._step is not None and self._pace is not None:
            drafted, expected = self._step
            self._pace.note(
                drafted, seconds - sum(batch.draft_seconds for batch in batches), expected
            )
            self._step = None
        tokens = sum(batch.new_tokens for batch in batches)
        for batch in batches:
            batch.learn(tokens)

    def renew(self) -> None:
        """Have the curve checked where that is due, between two steps."""
        if self._renew is not None and self._renew(self._used):
            self._curve = self._pace = self._step = None
            self._costs.clear()
            self._paces.clear()
        self._used = 0.0

    def _seconds(self, rows: int, unit: int, most: int) -> NDArray[np.float64]:
        """Return the seconds of steps of rows, rows + unit, ... rows + most * unit, as the curve
        has them.
        """
        key = rows, unit, self._context
        if len(self._costs.get(key, ())) <= most:
            self._curve = self._curve or self._make_curve()
            if len(self._costs) == _KEPT:
                self._costs.clear()
            self._costs[key] = self._curve.of(rows + unit * np.arange(most + 1), self._context)
        return self._costs[key][: most + 1]


def _charge_drafting(
    batches: Sequence[DrafterBatch], offers: NodeSelector, costs: NDArray[np.float64], plain: float
) -> None:
    """Add what it took to ask drafters' own models; one whose drafts are left out was not asked,
    and is not judged by that.

    Args:
        costs: of a step by its units, in steps without trees, which take `plain` seconds.
    """
    for batch in batches:
        if (
            batch.draft_seconds
            and batch.drafter_state.drafter.needs_draft_model
            and batch.drafter_state.stats is not None
        ):
            batch.cost = (
                batch.cost or float(costs[offers.units(batch)])
            ) + batch.draft_seconds / plain
