"""What the lookahead paper is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.bench.papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class LookaheadConfig(PaperConfig):
    """What every paper asks; this one has no options of its own."""

    paper: ClassVar[str] = "lookahead"
