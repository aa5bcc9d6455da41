"""Define the configuration for the SSSD paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class SssdConfig(PaperConfig):
    """Configuration of the SSSD paper, with the datastore to search.

    Attributes:
        datastore: Folder of a datastore of the target's tokenizer. Default: the built-in datastore
            for the built-in target; otherwise only the request is searched.
    """

    paper: ClassVar[str] = "sssd"

    datastore: str | None = None
