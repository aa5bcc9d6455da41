"""Define and validate the options of the `state_head` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.drafters.state_head.settings import BRANCH_THRESHOLD, MAX_DEPTH, STOP_THRESHOLD
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class StateHeadOptions:
    """Options of `state_head`, which drafts from the target's hidden states.

    Attributes:
        head: Folder or hub id of an EAGLE-3 or DFlash head. The head must be trained for the
            target. "mtp" selects the MTP layer in the target's checkpoint.
        max_depth: Maximum depth of the draft tree, in tokens; at least 1, default 8.
        branch_threshold: Draft alternative tokens only if their path probability reaches this
            number; from 0 to 1. With branch_threshold=1, drafts are chains. Defaults to 0.06.
        stop_threshold: Sum of the newest nodes' path probabilities below which drafting stops; from
            0 to 1, default 0.5. With 0, only `max_depth` limits the tree.
        budget: Verify only the nodes that are expected to save time; default true.
    """

    head: str | None = None
    max_depth: int = MAX_DEPTH
    branch_threshold: float = BRANCH_THRESHOLD
    stop_threshold: float = STOP_THRESHOLD
    budget: bool = True

    def __post_init__(self) -> None:
        require_range("state_head", "max_depth", self.max_depth, 1)
        require_range("state_head", "branch_threshold", self.branch_threshold, 0, 1)
        require_range("state_head", "stop_threshold", self.stop_threshold, 0, 1)
