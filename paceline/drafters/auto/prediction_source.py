"""Draft tokens from the caller's prediction of the answer."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.auto.settings import PredictionSourceSettings

_SETTINGS = PredictionSourceSettings()


class PredictionSource:
    """Proposes the tokens with which the caller's prediction continues the answer."""

    def __init__(self) -> None:
        self._positions: dict[int, PredictedPosition] = {}  # by request

    def start(self, request: Request) -> None:
        """Store the token ids of the request's prediction, if any."""
        prediction = request.params.prediction
        if prediction and not isinstance(prediction, str):
            self._positions[request.id] = PredictedPosition(prediction)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return one chain of predicted tokens per request; a chain may be empty."""
        if not self._positions:
            return [EMPTY_TREE] * len(requests)
        trees = []
        for request, limit in zip(requests, max_nodes, strict=True):
            position = self._positions.get(request.id)
            tokens: Sequence[int] = ()
            if position is not None:
                position.follow(request.output_ids)
                tokens = position.next_tokens(min(limit, _SETTINGS.max_tokens))
            count = len(tokens)
            trees.append(
                DraftTree.chain(
                    list(tokens),
                    None,
                    [_SETTINGS.confidence] * count,
                    [Origin.PREDICTION] * count,
                )
                if count
                else EMPTY_TREE
            )
        return trees

    def stop(self, request: Request) -> None:
        """Discard the predicted text of a request."""
        self._positions.pop(request.id, None)


class PredictedPosition:
    """Finds the position in a prediction that corresponds to the end of the answer.

    Args:
        prediction: Predicted token ids.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = tuple(prediction)
        self._next: int | None = 0  # None: the answer has departed from the prediction
        self._last = 0  # last known position; the answer may match again after it
        self._num_seen = 0
        size = _SETTINGS.ngram_tokens
        self._ends: dict[tuple[int, ...], list[int]] = {}
        for end in range(size, len(self._prediction) + 1):
            self._ends.setdefault(self._prediction[end - size : end], []).append(end)

    def follow(self, answer: Sequence[int]) -> None:
        """Move the position past the tokens added to the answer since the previous call.

        Args:
            answer: All token ids of the answer so far.
        """
        for end in range(self._num_seen + 1, len(answer) + 1):
            at, token = self._next, answer[end - 1]
            if at is not None and at < len(self._prediction) and self._prediction[at] == token:
                self._next = self._last = at + 1
            else:
                self._next = self._found(tuple(answer[max(0, end - _SETTINGS.ngram_tokens) : end]))
        self._num_seen = len(answer)

    def next_tokens(self, count: int) -> Sequence[int]:
        """Return up to `count` tokens with which the prediction continues the answer.

        The result is empty if the answer has departed from the prediction.
        """
        return () if self._next is None else self._prediction[self._next : self._next + count]

    def _found(self, tail: tuple[int, ...]) -> int | None:
        """Return the position after a match of `tail` in the prediction, or None.

        If there are several matches, the first one at or after the last known position is
        preferred.

        Args:
            tail: Newest tokens of the answer.
        """
        ends = self._ends.get(tail)
        if not ends:
            return None
        nearest = next((end for end in ends if end >= self._last), ends[-1])
        self._last = nearest
        return nearest
