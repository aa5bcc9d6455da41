"""Synchronise the processes of a parallel benchmark, which share draft trees."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from paceline.bench.methods import MethodAnswer
from paceline.bench.settings import BenchConfig
from paceline.bench.timed_calls import TimedCall
from paceline.drafters import create, entry
from paceline.engine.parallel.ranks import Ranks, check_columns
from paceline.errors import ConfigError
from paceline.util.config import parse_spec


class Lockstep:
    """Synchronises the processes of a benchmark, if there are several.

    Args:
        config: Configuration of the run, with the number of ranks (processes).
        ranks: Group of ranks. None if the processes have not joined a group yet.
    Raises:
        ConfigError: The number of ranks differs from the number in `config`. Also raised if no
            drafter in `config` proposes draft trees that ranks can share.
    """

    def __init__(self, config: BenchConfig, ranks: Ranks | None) -> None:
        self._ranks: Ranks | None = None
        self._shared: list[str] = []
        if not config.lookahead_parallel:
            return
        self._ranks = ranks = ranks or Ranks.join(config.models.device)
        if ranks.size != config.lookahead_parallel:
            raise ConfigError(
                f"bench: \0lookahead_parallel\0 is {config.lookahead_parallel}, but {ranks.size}"
                f" ranks joined. Start {config.lookahead_parallel} processes."
            )
        for spec in config.drafters:
            drafter = None if entry(parse_spec(spec)[0]).needs_draft_model else create(spec)
            if drafter is not None and drafter.columns > 1:
                check_columns(drafter, ranks.size)
                self._shared.append(spec)
        if not self._shared:
            raise ConfigError(
                f"bench: none of the drafters {', '.join(config.drafters)} has a window that ranks"
                " could share. Add --drafter lookahead, or leave \0lookahead_parallel\0 out."
            )

    def ranks(self, spec: str) -> Ranks | None:
        """Return the processes that share a drafter's trees; None if trees are not shared."""
        return self._ranks if spec in self._shared else None

    def wait_for_all(self, over: bool = False) -> bool:
        """Wait for all processes, and return whether the run is over.

        Args:
            over: Whether this process considers the run to be over. Only the value of rank 0
                counts, and every process returns that value.
        """
        return over if self._ranks is None else bool(self._ranks.first(over))

    def count_busiest(self, calls: Iterable[tuple[TimedCall, list[MethodAnswer]]]) -> None:
        """Replace the query-token counts with those of the busiest rank (process).

        This affects only drafters whose trees the ranks share.
        """
        for spec in self._shared:
            stats = [
                answer.stats for call, answers in calls if call.method == spec for answer in answers
            ]
            counters = [counter.query_tokens for counter in stats if counter is not None]
            assert self._ranks is not None
            counts = iter(
                max(
                    self._ranks.gather([count for counter in counters for count in counter]),
                    key=sum,
                )
            )
            for counter in counters:
                counter[:] = islice(counts, len(counter))
