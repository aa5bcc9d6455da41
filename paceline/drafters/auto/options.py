"""Options of the auto drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.util.config import require_range
from paceline.util.limits import LONGEST_KEY

_MOST_NODES = 256


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Attributes:
    datastore: folder of a store, or "demo", that of the embedded target; none = without.
    calibration: of the retrieval: a file of `paceline replay --fit`; none = the one that comes with
    the package. keys: most newest tokens under which a distribution is kept.
    nodes: most nodes of a tree. Not given: 48 with the budget; without it 16, and in a larger batch
    what makes 48 in all. budget: of these, the engine feeds what pays for its forward.
    least: chance of a path below which it is not proposed.
    remember, live: as those of `sssd`.
    draft: a draft model, where one is given, is a source, too: with the budget while that pays,
    else at every step. foresight: what follows the newest token is guessed from the target's hidden
    state; or the file of `paceline draft-head train`
        to do so with.
    pool: file that the kept distributions are read from, if it is there, and saved to.
    """

    datastore: str | None = None
    calibration: str | None = None
    keys: int = 3
    nodes: int | None = None
    budget: bool = True
    least: float = 0.001
    remember: int | None = None
    live: bool = False
    draft: bool = True
    draft_head: bool | str = True
    pool: str | None = None

    def __post_init__(self) -> None:
        require_range("auto", "keys", self.keys, 1, LONGEST_KEY)
        require_range("auto", "least", self.least, 0, 1)
        if self.nodes is not None:
            require_range("auto", "nodes", self.nodes, 1, _MOST_NODES)
