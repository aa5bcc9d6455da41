"""A sequence of the target as a draft model sees it: shared by the drafters that own a draft model."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.engine.model import CachedLM
from paceline.engine.reading.modules import layers_read
from paceline.engine.rotary import start_anew
from paceline.engine.sequence import Sequence
from paceline.engine.states import StateLog


@dataclass(slots=True)
class Shadow:
    """A sequence in the draft's cache: the target's tokens, then drafted ones.

    Attributes:
        seq: the draft model's copy.
        agreed: leading tokens known to be the target's.
    """

    seq: Sequence
    agreed: int

    @staticmethod
    def open_for(seq: Sequence, copy: Sequence, draft: CachedLM) -> None:
        """Open `copy` in the draft's cache, and have the target's states kept for it where the draft reads them."""
        draft.open(copy)
        if draft.reads_states:
            seq.states = copy.states = seq.states or StateLog(layers_read(draft.model))

    def catch_up(self, draft: CachedLM, text: list[int]) -> None:
        """Take over the target's `text`, rewinding the draft to the common prefix; the newest token stays to be fed.

        A draft that reads states reads again what it has drafted itself, now that its states are known.
        """
        mine, common = self.seq.token_ids, self.agreed
        while not draft.reads_states and common < min(len(mine), len(text)) and mine[common] == text[common]:
            common += 1
        draft.rewind(self.seq, min(common, len(text) - 1))
        mine[common:] = text[common:]
        self.agreed = len(text)
        if (switch := draft.architecture.restart_length) is not None:
            start_anew(self.seq, switch)
