"""Configuration of the lookahead paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class LookaheadConfig(PaperConfig):
    """Configuration of the lookahead paper, without further options."""

    paper: ClassVar[str] = "lookahead"
