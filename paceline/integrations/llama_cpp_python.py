"""Draft tokens inside llama-cpp-python, as its `draft_model`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.util.config import require_count

_PARAMS = SamplingParams(ignore_eos=True)
MAX_DRAFT_TOKENS = 10  # as many as llama-cpp-python's own prompt lookup proposes


class LlamaCppDraftModel:
    """Drafts chains for `llama_cpp.Llama(..., draft_model=...)`.

    The object follows one text at a time. If a text does not continue the text of the previous
    call, a new request starts. One object may therefore serve many calls, but not several threads.

    Args:
        drafter: Spec of a drafter without a model, such as "sssd:datastore=DIRECTORY"; or a
            `Drafter`.
        max_draft_tokens: Maximum number of draft tokens per call; at least 1; default 10.
    Raises:
        ConfigError: The drafter needs a draft model or the target's most likely tokens.
    """

    def __init__(
        self, drafter: str | Drafter = "sssd", max_draft_tokens: int = MAX_DRAFT_TOKENS
    ) -> None:
        require_count("LlamaCppDraftModel", "max_draft_tokens", max_draft_tokens, 1)
        self._drafter = create(drafter) if isinstance(drafter, str) else drafter
        if self._drafter.needs_draft_model or self._drafter.needs_predictions:
            raise ConfigError(
                f"drafter: got {self._drafter.name!r}, which reads the target's predictions;"
                " llama-cpp-python passes texts only. Use sssd, prompt_lookup or rest."
            )
        self._max_draft_tokens = max_draft_tokens
        self._request: Request | None = None
        self._chain = EMPTY_TREE

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Return draft tokens for a text.

        Args:
            input_ids: Token ids of the text so far.
        """
        request = self._advanced(input_ids.tolist())
        (tree,) = self._drafter.propose([request], [self._max_draft_tokens])
        self._chain = tree.best_chain().first(self._max_draft_tokens)
        return np.array(self._chain.token_ids, dtype=np.intc)

    def _advanced(self, token_ids: list[int]) -> Request:
        """Return the request for a text, after the drafter has observed its new tokens."""
        request = self._request
        if request is not None:
            known = len(request)
            if known < len(token_ids) and request.token_ids == token_ids[:known]:
                self._observe(request, token_ids[known:])
                return request
            self._drafter.stop(request)
        request = self._request = Request(token_ids, _PARAMS)
        self._drafter.start(request)
        return request

    def _observe(self, request: Request, new_tokens: list[int]) -> None:
        accepted = _num_accepted(self._chain, new_tokens)
        request.append(new_tokens)
        request.finish_reason = None  # llama-cpp-python decides when a text ends
        argmax = [*new_tokens[: accepted + 1], *[0] * (len(self._chain) - accepted)]
        self._drafter.observe(
            [Outcome(request, self._chain, list(range(accepted)), new_tokens, argmax)]
        )


def _num_accepted(chain: DraftTree, new_tokens: list[int]) -> int:
    """Return how many tokens of a chain the target has accepted."""
    accepted = 0
    for draft, token in zip(chain.token_ids, new_tokens[:-1], strict=False):
        if draft != token:
            break
        accepted += 1
    return accepted
