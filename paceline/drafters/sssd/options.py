"""Options of the sssd drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.common.config import require_range
from paceline.common.limits import EMBEDDED
from paceline.errors import ConfigError

FUSIONS = ("calibrated", "paper")
MOST_NODES = 512


@dataclass(frozen=True, slots=True)
class SssdOptions:
    """Attributes:
    datastore: folder of a store, or "demo", that of the embedded target; none = the request alone.
    fusion: calibrated | paper.
    calibration: a file of `paceline replay --fit`; none = the one that comes with the package.
    nodes: most nodes of a tree. Not given: 48 with the budget; without it 7, and in a larger batch what makes 24 in all.
    budget: of these, the engine feeds what pays for its forward.
    live: finished answers go into the datastore; while they go on, the other requests find them in memory.
    """

    datastore: str | None = None
    fusion: str = "calibrated"
    calibration: str | None = None
    nodes: int | None = None
    budget: bool = True
    live: bool = False

    def __post_init__(self) -> None:
        if self.nodes is not None:
            require_range("sssd", "nodes", self.nodes, 1, MOST_NODES)
        if self.fusion not in FUSIONS:
            raise ConfigError(f"sssd: got fusion={self.fusion!r}; expected one of {', '.join(FUSIONS)}.")
        if self.fusion == "paper" and self.calibration is not None:
            raise ConfigError(
                f"sssd: got calibration={self.calibration} with fusion=paper, whose weights are fixed; expected one of them."
                " Leave the other out."
            )
        if self.live and self.datastore is None:
            raise ConfigError("sssd: got live=true without a datastore; expected one to append to. Give datastore=PATH.")
        if self.live and self.datastore == EMBEDDED:
            raise ConfigError(
                f"sssd: got live=true with datastore={EMBEDDED}, which belongs to the package and is only read; expected a"
                " store of your own. Build one (paceline datastore build), and name its folder."
            )
