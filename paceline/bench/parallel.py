"""A bench run in several processes that share draft trees: all of them make the same calls, in
step.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from paceline.bench.methods import MethodAnswer
from paceline.bench.result import TimedCall
from paceline.bench.settings import BenchConfig
from paceline.drafters import create, entry
from paceline.engine.parallel.model import check_columns
from paceline.engine.parallel.ranks import Ranks
from paceline.errors import ConfigError
from paceline.util.config import parse_spec


class Lockstep:
    """The processes of a bench run; with a single one, nothing has to be done.

    Args:
        ranks: joined ones, if they have been; `config` says how many there must be.
    Raises:
        ConfigError: another number of ranks, or no drafter whose trees they could share.
    """

    def __init__(self, config: BenchConfig, ranks: Ranks | None) -> None:
        self._ranks: Ranks | None = None
        self._shared: list[str] = []
        if not config.lookahead_parallel:
            return
        self._ranks = ranks = ranks or Ranks.join(config.models.device)
        if ranks.size != config.lookahead_parallel:
            raise ConfigError(
                f"bench: lookahead_parallel is {config.lookahead_parallel}, and {ranks.size} ranks"
                " came; both must be the same."
            )
        for spec in config.drafters:
            drafter = None if entry(parse_spec(spec)[0]).needs_draft_model else create(spec)
            if drafter is not None and drafter.columns > 1:
                check_columns(drafter, ranks.size)
                self._shared.append(spec)
        if not self._shared:
            raise ConfigError(
                f"bench: none of the drafters {', '.join(config.drafters)} has a window that ranks"
                " could share; add"
                " --drafter lookahead, or leave lookahead_parallel out."
            )

    def ranks(self, spec: str) -> Ranks | None:
        """Those that share the trees of a drafter; None where every process does all of it."""
        return self._ranks if spec in self._shared else None

    def compact_slots(self, over: bool = False) -> bool:
        """Wait for all processes; whether `over` holds on rank 0, whose clock decides."""
        return over if self._ranks is None else bool(self._ranks.first(over))

    def count_busiest(self, calls: Iterable[tuple[TimedCall, list[MethodAnswer]]]) -> None:
        """Overwrite the fed tokens of the shared drafters' answers with those of the rank that
        has fed most.
        """
        for spec in self._shared:
            stats = [
                answer.stats for call, answers in calls if call.method == spec for answer in answers
            ]
            fed = [one.fed for one in stats if one is not None]
            assert self._ranks is not None
            counts = iter(max(self._ranks.gather([count for one in fed for count in one]), key=sum))
            for one in fed:
                one[:] = islice(counts, len(one))
