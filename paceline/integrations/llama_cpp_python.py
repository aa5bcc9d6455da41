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
MAX_DRAFT_TOKENS = 10  # the default of llama-cpp-python's own prompt lookup


class LlamaCppDraftModel:
    """Drafts chains of tokens for `llama_cpp.Llama(..., draft_model=...)`.

    The drafter keeps state for one text at a time. If a text does not continue the text of the
    previous call, a new request starts. You can therefore use one object for many calls, but not in
    several threads at once.

    Args:
        drafter: Spec of a drafter that needs only text, such as "sssd:datastore=DIRECTORY"; or a
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
        """Draft the next tokens of a text, and return their ids.

        Args:
            input_ids: Token ids of the text so far.
        """
        request = self._advanced(input_ids.tolist())
        (tree,) = self._drafter.propose([request], [self._max_draft_tokens])
        self._chain = tree.best_chain().first(self._max_draft_tokens)
        return np.array(self._chain.token_ids, dtype=np.intc)

    def _advanced(self, token_ids: list[int]) -> Request:
        """Pass the text's new tokens to the drafter, and return the request for the text."""
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
    """Return how many draft tokens of a chain the target has accepted."""
    accepted = 0
    for draft, token in zip(chain.token_ids, new_tokens[:-1], strict=False):
        if draft != token:
            break
        accepted += 1
    return accepted
