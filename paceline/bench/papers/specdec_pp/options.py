"""What the SpecDec++ paper is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.bench.papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class SpecDecConfig(PaperConfig):
    """What every paper asks, and the heads that are compared.

    Attributes:
        head: folder of an acceptance head, repeatable; the first one is compared with everything;
            default: the shipped one.
        recording: folder that `paceline head record` has filled, repeatable: heads are trained on
            them and compared.
    """

    paper: ClassVar[str] = "specdec_pp"

    head: tuple[str, ...] = ()
    recording: tuple[str, ...] = ()
