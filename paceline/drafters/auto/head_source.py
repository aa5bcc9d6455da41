"""Use an EAGLE-3, DFlash or MTP head as one of several sources of draft tokens."""

from __future__ import annotations

from paceline.drafters.auto.model_source import TreeSource
from paceline.drafters.auto.settings import ModelSourceSettings
from paceline.drafters.state_head.drafter import StateHeadDrafter, StateHeadOptions
from paceline.drafters.state_head.settings import STOP_THRESHOLD

_SETTINGS = ModelSourceSettings()


class HeadSource(TreeSource):
    """Proposes draft trees with confidences from an EAGLE-3, DFlash or MTP head.

    Args:
        head: Folder or hub id of the head.
        brief: Whether to end a draft as soon as the head is unsure, which saves forward passes.
    Raises:
        ConfigError: The head does not exist.
    """

    def __init__(self, head: str, brief: bool) -> None:
        threshold = _SETTINGS.stop_threshold if brief else STOP_THRESHOLD
        options = StateHeadOptions(head, stop_threshold=threshold)
        super().__init__(StateHeadDrafter.build(options))
