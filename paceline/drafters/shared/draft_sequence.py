"""A sequence of the target as a draft model sees it: shared by the drafters that own a draft
model.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.hidden_state_log import HiddenStateLog
from paceline.core.request import Request
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import layers_read
from paceline.model.rotary import start_anew


@dataclass(slots=True)
class DraftSequence:
    """A sequence in the draft's cache: the target's tokens, then drafted ones.

    Attributes:
        seq: the draft model's copy.
        agreed: leading tokens known to be the target's.
    """

    request: Request
    agreed: int

    @staticmethod
    def open_for(request: Request, copy: Request, draft: CachedLM) -> None:
        """Open `copy` in the draft's cache, and have the target's states kept for it where the
        draft reads them.
        """
        draft.open(copy)
        if draft.uses_target_states:
            request.states = copy.states = request.states or HiddenStateLog(
                layers_read(draft.model)
            )

    def sync_with_target(self, draft: CachedLM, text: list[int]) -> None:
        """Take over the target's `text`, rewinding the draft to the common prefix; the newest token
        stays to be fed.

        A draft that reads states reads again what it has drafted itself, now that its states are
        known.
        """
        mine, common = self.request.token_ids, self.agreed
        while (
            not draft.uses_target_states
            and common < min(len(mine), len(text))
            and mine[common] == text[common]
        ):
            common += 1
        draft.rewind(self.request, min(common, len(text) - 1))
        mine[common:] = text[common:]
        self.agreed = len(text)
        if (switch := draft.architecture.restart_length) is not None:
            start_anew(self.request, switch)
