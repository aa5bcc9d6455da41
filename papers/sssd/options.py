"""Define the configuration for the SSSD paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from papers.config import PaperConfig


@dataclass(frozen=True, slots=True)
class SssdConfig(PaperConfig):
    """Configuration for the SSSD paper, including the datastore to search.

    Attributes:
        datastore: Folder of a datastore with the target's tokenizer. Default: the built-in
            datastore for the built-in target. For other targets, the default is to search only the
            request.
    """

    paper: ClassVar[str] = "sssd"

    datastore: str | None = None
