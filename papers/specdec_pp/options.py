"""Define the configuration for the SpecDec++ paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class SpecDecConfig(PaperConfig):
    """Configuration for the SpecDec++ paper, including the heads to compare.

    Attributes:
        head: Folder of an acceptance head; repeatable. The first head is compared with all rules.
            Default: the built-in head.
        recording: Folder of a recording made by `paceline head record`; repeatable. Heads are
            trained on the recordings and compared. Default: none.
    """

    paper: ClassVar[str] = "specdec_pp"

    head: tuple[str, ...] = ()
    recording: tuple[str, ...] = ()
