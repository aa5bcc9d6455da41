"""Keep the draft model's copy of a request in sync with the target's text."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.hidden_state_log import HiddenStateLog
from paceline.core.request import Request
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import layers_read


@dataclass(slots=True)
class DraftSequence:
    """The draft model's copy of a request: confirmed tokens, then draft tokens.

    Attributes:
        request: The draft model's copy of the request.
        agreed: Number of leading tokens that the target has confirmed.
    """

    request: Request
    agreed: int

    @staticmethod
    def open_for(request: Request, copy: Request, draft: CachedLM) -> None:
        """Open `copy` in the draft model, and share the target's hidden states if needed.

        Args:
            request: Request of the target.
            copy: The draft model's copy of the request.
            draft: Draft model. If it reads the target's hidden states, both requests share one log
                of these states.
        """
        draft.open(copy)
        if draft.uses_target_states:
            request.states = copy.states = request.states or HiddenStateLog(
                layers_read(draft.model)
            )

    def sync_with_target(self, draft: CachedLM, text: list[int]) -> None:
        """Copy the target's text, and cut the draft model's cache to the common prefix.

        The newest token stays pending. If the draft model reads target states, it processes
        accepted draft tokens again, because their target states were unknown during drafting.

        Args:
            draft: Draft model.
            text: All tokens of the target's request.
        """
        tokens, common = self.request.token_ids, self.agreed
        while (
            not draft.uses_target_states
            and common < min(len(tokens), len(text))
            and tokens[common] == text[common]
        ):
            common += 1
        draft.rewind(self.request, min(common, len(text) - 1))
        tokens[common:] = text[common:]
        self.agreed = len(text)
        draft.restart_if_due(self.request)
