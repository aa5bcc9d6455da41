"""Draft the tokens that a request's grammar allows as the only continuation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.auto.settings import GrammarSourceSettings

_SETTINGS = GrammarSourceSettings()


class GrammarSource:
    """Proposes the tokens that a request's grammar forces.

    The tokens come from a logits processor with a method `forced_tokens`, such as
    `paceline.grammars.Grammar`. The grammar determines the text with certainty, but the target may
    split this text into different tokens.
    """

    def __init__(self) -> None:
        self._processors: dict[int, list[Any]] = {}  # copies used only for drafting, by request id
        self._num_seen: dict[int, int] = {}  # answer tokens passed to the copies, by request id

    def start(self, request: Request) -> None:
        """Copy the request's logits processors that can force tokens."""
        given = request.params.logits_processors
        knowing = [copy.copy(each) for each in given if hasattr(each, "forced_tokens")]
        if knowing:
            self._processors[request.id], self._num_seen[request.id] = knowing, 0

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return one chain of forced tokens per request; a chain may be empty."""
        if not self._processors:
            return [EMPTY_TREE] * len(requests)
        return [
            self._chain(request, min(limit, _SETTINGS.max_tokens))
            for request, limit in zip(requests, max_nodes, strict=True)
        ]

    def stop(self, request: Request) -> None:
        """Discard the copies of the request's logits processors."""
        self._processors.pop(request.id, None)
        self._num_seen.pop(request.id, None)

    def _chain(self, request: Request, limit: int) -> DraftTree:
        processors = self._processors.get(request.id, ())
        if not processors:
            return EMPTY_TREE
        new = request.token_ids[request.prompt_length + self._num_seen[request.id] :]
        self._num_seen[request.id] += len(new)
        forced = [each.forced_tokens(new) for each in processors]
        tokens: list[int] = next(filter(None, forced), [])[:limit]
        if not tokens:
            return EMPTY_TREE
        count = len(tokens)
        return DraftTree.chain(
            tokens, None, [_SETTINGS.confidence] * count, [Origin.GRAMMAR] * count
        )
