"""The drafters of one engine: its own, and those that single requests name."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from weakref import WeakKeyDictionary

from paceline.core.drafter import Drafter, Plain
from paceline.core.request import Request
from paceline.draft_budget.drafter_state import DrafterState, DrafterStats
from paceline.engine.turn import Lock
from paceline.errors import BusyError, ConfigError, PacelineError
from paceline.util.config import SpecKey, spec_key

MOST_DRAFTERS = 16  # besides the engine's own
Maker = Callable[[str], Drafter]


def no_maker(spec: str) -> Drafter:
    """The maker of an engine that can make no drafters.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"got {spec!r}; expected None, since this engine was given one drafter and no way to make"
        " others."
    )


class DrafterPool:
    """Makes a drafter for each spec that a request names, once, and keeps it with what is known of
    it for later ones.

    Args:
        make: builds a drafter from its spec.
        check: raises where a drafter does not fit the engine.
        may_cut: whether trees may be cut to what pays.
    """

    def __init__(self, make: Maker, check: Callable[[Drafter], None], may_cut: bool) -> None:
        self._make, self._check, self._may_cut = make, check, may_cut
        self._stats: WeakKeyDictionary[Drafter, DrafterStats] = WeakKeyDictionary()
        # the one that was asked for last at the end
        self._named: OrderedDict[SpecKey, DrafterState] = OrderedDict()
        self._own: DrafterState | None = None
        self._own_key: SpecKey | None = None
        self._lock = threading.Lock()  # of what is known
        # held while a drafter is made, which may take seconds; nobody else has to wait for it
        self._making = threading.Lock()

    @property
    def locks(self) -> list[Lock]:
        """All locks under which it changes."""
        return [self._lock, self._making]

    @property
    def own(self) -> DrafterState:
        """The engine's own, for requests that name none."""
        assert self._own is not None, "use comes first"
        return self._own

    def use(self, drafter: Drafter, spec: str | None) -> None:
        """Make a drafter the engine's own.

        Args:
            spec: what it was made of, where that is known: requests that name it get the same
                object.
        Raises:
            as `check`.
        """
        self._check(drafter)
        self._own, self._own_key = self._state_of(drafter), None if spec is None else spec_key(spec)

    def find(
        self, spec: str | None, in_use: Callable[[], AbstractSet[DrafterState]]
    ) -> DrafterState:
        """Return the drafter of a spec, the engine's own for None.

        Args:
            in_use: returns those that open requests have; asked where one has to go to make room.
        Raises:
            ConfigError: it cannot be made or does not fit. BusyError: too many are in use. And what
                `make` raises.
        """
        if spec is None:
            return self.own
        key = spec_key(spec)
        if (known := self._known(key)) is not None:
            return known
        with self._making:
            if (known := self._known(key)) is not None:  # made meanwhile
                return known
            with self._lock:
                self._make_room(in_use)
            drafter = self._make(spec)
            self._check(drafter)
            with self._lock:
                self._named[key] = self._state_of(drafter)
                return self._named[key]

    def find_all(
        self, requests: Sequence[Request], in_use: Callable[[], AbstractSet[DrafterState]]
    ) -> list[DrafterState]:
        """Return the drafter of every sequence, by its `params.speculation`.

        Raises:
            as `find`, naming the prompt.
        """
        found = []
        for place, request in enumerate(requests):
            try:
                drafter_state = self.find(request.params.speculation, in_use)
            except PacelineError as error:
                raise type(error)(f"prompt {place}: speculation: {error}") from error
            found.append(DrafterState(Plain(), None) if request.fed_only else drafter_state)
        return found

    def knows(self, spec: str | None) -> bool:
        """Whether the drafter of a spec is there already."""
        if spec is None:
            return True
        try:
            return self._known(spec_key(spec)) is not None
        except ConfigError:  # which `find` will say
            return False

    def _known(self, key: SpecKey) -> DrafterState | None:
        if key == self._own_key:
            return self.own
        with self._lock:
            if key in self._named:
                self._named.move_to_end(key)
            return self._named.get(key)

    def _state_of(self, drafter: Drafter) -> DrafterState:
        return DrafterState(
            drafter,
            self._stats.setdefault(drafter, DrafterStats())
            if drafter.budget and self._may_cut
            else None,
        )

    def _make_room(self, in_use: Callable[[], AbstractSet[DrafterState]]) -> None:
        if len(self._named) < MOST_DRAFTERS:
            return
        busy = in_use()
        idle = next(
            (key for key, drafter_state in self._named.items() if drafter_state not in busy), None
        )
        if idle is None:
            raise BusyError(
                f"got one more drafter while {MOST_DRAFTERS} others are in use; expected at most so"
                " many. Let some requests end, or name a drafter that is in use."
            )
        del self._named[idle]
