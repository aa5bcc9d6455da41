"""What the SSSD paper is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.bench.papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class SssdConfig(PaperConfig):
    """What every paper asks, and the datastore that is searched.

    Attributes:
        datastore: folder of a store of the target's tokenizer; default: the embedded target's own;
            without, the request only.
    """

    paper: ClassVar[str] = "sssd"

    datastore: str | None = None
