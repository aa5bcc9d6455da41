"""Options of the sssd drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range
from paceline.util.limits import EMBEDDED

FUSIONS = ("calibrated", "paper")
MOST_NODES = 512
REMEMBERED, MOST_REMEMBERED = 1 << 18, 1 << 20


@dataclass(frozen=True, slots=True)
class SssdOptions:
    """Attributes:
    datastore: folder of a store, or "demo", that of the embedded target; none = without.
    fusion: calibrated | paper.
    calibration: a file of `paceline replay --fit`; none = the one that comes with the package.
    nodes: most nodes of a tree. Not given: 48 with the budget; without it 7, and in a larger batch
    what makes 24 in all. budget: of these, the engine feeds what pays for its forward.
    remember: tokens of answers to other requests, the newest, that are searched as well, in memory
    alone; those that go on
        besides. 0 = none. Not given: 262144; none with `fusion=paper`.
    live: answers are remembered in the datastore, once they have ended, and not in memory alone.
    """

    datastore: str | None = None
    fusion: str = "calibrated"
    calibration: str | None = None
    nodes: int | None = None
    budget: bool = True
    remember: int | None = None
    live: bool = False

    def __post_init__(self) -> None:
        if self.nodes is not None:
            require_range("sssd", "nodes", self.nodes, 1, MOST_NODES)
        if self.remember is not None:
            require_range("sssd", "remember", self.remember, 0, MOST_REMEMBERED)
        if self.fusion not in FUSIONS:
            raise ConfigError(
                f"sssd: got fusion={self.fusion!r}; expected one of {', '.join(FUSIONS)}."
            )
        if self.fusion == "paper" and self.calibration is not None:
            raise ConfigError(
                f"sssd: got calibration={self.calibration} with fusion=paper, whose weights are"
                " fixed; expected one of them."
                " Leave the other out."
            )
        if self.live and self.remember is not None:
            raise ConfigError(
                f"sssd: got live=true with remember={self.remember}; expected one of them, as a"
                " live datastore keeps answers by"
                " bounds of its own. Leave the other out."
            )
        if self.live and self.datastore is None:
            raise ConfigError(
                "sssd: got live=true without a datastore; expected one to append to. Give"
                " datastore=PATH."
            )
        if self.live and self.datastore == EMBEDDED:
            raise ConfigError(
                f"sssd: got live=true with datastore={EMBEDDED}, which belongs to the package and"
                " is only read; expected a"
                " store of your own. Build one (paceline datastore build), and name its folder."
            )

    @property
    def remembered(self) -> int:
        """Tokens of answers that are kept in memory alone."""
        if self.remember is not None:
            return self.remember
        return 0 if self.live or self.fusion == "paper" else REMEMBERED
