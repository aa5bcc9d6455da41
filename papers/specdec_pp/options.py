"""Configuration of the SpecDec++ paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class SpecDecConfig(PaperConfig):
    """Configuration of the SpecDec++ paper, with the heads to compare.

    Attributes:
        head: Folder of an acceptance head; may be repeated. The first is compared with all rules.
            Default: the built-in one.
        recording: Folder of a recording of `paceline head record`; may be repeated. Heads are
            trained on the recordings and compared.
    """

    paper: ClassVar[str] = "specdec_pp"

    head: tuple[str, ...] = ()
    recording: tuple[str, ...] = ()
