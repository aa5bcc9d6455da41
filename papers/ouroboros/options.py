"""Define the configuration for the Ouroboros paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class OuroborosConfig(PaperConfig):
    """Configuration for the Ouroboros paper, which adds no options."""

    paper: ClassVar[str] = "ouroboros"
