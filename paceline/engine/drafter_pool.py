"""Store an engine's drafters: the default one, and those named in requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from paceline.core.drafter import Drafter, Plain
from paceline.core.request import Request
from paceline.draft_budget.drafts import DrafterState
from paceline.engine.settings import MAX_NAMED_DRAFTERS
from paceline.engine.turn import Lock
from paceline.errors import BusyError, ConfigError, PacelineError
from paceline.util.config import SpecKey, spec_key

if TYPE_CHECKING:
    from paceline.draft_budget.drafter_stats import DrafterStats

Maker = Callable[[str], Drafter]


def no_maker(spec: str) -> Drafter:
    """Reject a drafter spec in an engine that cannot create drafters.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"got {spec!r}; expected None, because this engine cannot create other drafters."
    )


def refuse_others(spec: str) -> Drafter:
    """Reject a drafter spec in a lookahead-parallel engine.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"got {spec!r} in lookahead parallelism, where the processes share the trees of a single"
        " drafter; expected None, or the spec of that drafter. Leave it out."
    )


class DrafterPool:
    """Creates one drafter for each spec named in a request.

    The pool also stores the statistics of each drafter.

    Args:
        make: Function that creates a drafter from its spec.
        check: Function that raises an error if a drafter cannot be used with the engine.
        new_stats: Function that returns empty statistics for a drafter. None if the engine has no
            draft budget.
    """

    def __init__(
        self,
        make: Maker,
        check: Callable[[Drafter], None],
        new_stats: Callable[[], DrafterStats] | None,
    ) -> None:
        self._make, self._check, self._new_stats = make, check, new_stats
        self._stats: WeakKeyDictionary[Drafter, DrafterStats] = WeakKeyDictionary()
        self._named: OrderedDict[SpecKey, DrafterState] = OrderedDict()  # most recently used last
        self._own: DrafterState | None = None
        self._own_key: SpecKey | None = None
        self._lock = threading.Lock()  # guards the dictionaries
        # Held while a drafter is created, which may take seconds. Requests for existing drafters
        # do not wait for this lock.
        self._making = threading.Lock()

    @property
    def locks(self) -> list[Lock]:
        """Return all locks that a thread must hold while it changes the pool."""
        return [self._lock, self._making]

    @property
    def own(self) -> DrafterState:
        """Return the default drafter, for requests that do not name one."""
        assert self._own is not None, "call use first"
        return self._own

    def use(self, drafter: Drafter, spec: str | None) -> None:
        """Make a drafter the engine's default.

        Args:
            drafter: Drafter for requests that do not name one.
            spec: Spec from which the drafter was created, if known. Requests that name this spec
                use the same object.
        Raises:
            ConfigError, DatastoreError: The drafter cannot be used with the engine.
        """
        self._check(drafter)
        self._own, self._own_key = self._state_of(drafter), None if spec is None else spec_key(spec)

    def find(
        self, spec: str | None, in_use: Callable[[], AbstractSet[DrafterState]]
    ) -> DrafterState:
        """Return the drafter for a spec, creating it if necessary.

        Args:
            spec: Drafter spec; None means the engine's default.
            in_use: Function that returns the drafters of open requests. To make room for a new
                drafter, the pool evicts only drafters that are not in use.
        Raises:
            ConfigError: The drafter cannot be created, or cannot be used with the engine.
            BusyError: Too many drafters are in use.
        """
        if spec is None:
            return self.own
        key = spec_key(spec)
        if (known := self._known(key)) is not None:
            return known
        with self._making:
            if (known := self._known(key)) is not None:  # another thread has created it
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
        """Return the drafter of every request, according to its `params.speculation`.

        For a request that generates no tokens, the drafter performs plain decoding.

        Args:
            requests: Requests whose drafters are needed.
            in_use: Function that returns the drafters of open requests.
        Raises:
            ConfigError, BusyError: See `find`; the message names the prompt.
        """
        states = []
        for index, request in enumerate(requests):
            try:
                state = self.find(request.params.speculation, in_use)
            except PacelineError as error:
                raise type(error)(f"prompt {index}: speculation: {error}") from error
            states.append(DrafterState(Plain(), None) if request.prefill_only else state)
        return states

    def knows(self, spec: str | None) -> bool:
        """Return whether the drafter for a spec already exists."""
        if spec is None:
            return True
        try:
            return self._known(spec_key(spec)) is not None
        except ConfigError:  # `find` will raise the error
            return False

    def _known(self, key: SpecKey) -> DrafterState | None:
        if key == self._own_key:
            return self.own
        with self._lock:
            if key in self._named:
                self._named.move_to_end(key)
            return self._named.get(key)

    def _state_of(self, drafter: Drafter) -> DrafterState:
        stats = None
        if drafter.budget and self._new_stats is not None:
            stats = self._stats.setdefault(drafter, self._new_stats())
        return DrafterState(drafter, stats)

    def _make_room(self, in_use: Callable[[], AbstractSet[DrafterState]]) -> None:
        if len(self._named) < MAX_NAMED_DRAFTERS:
            return
        busy = in_use()
        idle = next((key for key, state in self._named.items() if state not in busy), None)
        if idle is None:
            raise BusyError(
                f"got one more drafter while {MAX_NAMED_DRAFTERS} others are in use; expected at"
                " most that number. Wait for some requests to end, or name a drafter that is in"
                " use."
            )
        del self._named[idle]
