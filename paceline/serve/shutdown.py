"""The end of a server: what is open comes to its end, nothing new begins."""

from __future__ import annotations

import logging
from types import FrameType

import uvicorn

_STUCK = 5  # seconds that connections have to close when no request is open any more


class ShutdownState:
    """Whether the end has begun, and how many requests are open.

    Attributes:
        begun: no new requests are taken.
        open: requests that are not answered to their end.
    """

    def __init__(self) -> None:
        self.begun = False
        self.open = 0


class DrainingServer(uvicorn.Server):
    """A uvicorn server that goes on listening until the open requests have ended, so that its
    health can be asked for.

    SIGTERM and Ctrl-C begin the end; a second one makes it come at once.

    Attributes:
        forced: the signal that did not wait for the end; None = it came by itself.
    """

    def __init__(self, config: uvicorn.Config, drain: ShutdownState) -> None:
        config.timeout_graceful_shutdown = _STUCK
        super().__init__(config)
        self._drain = drain
        self.forced: int | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self._drain.begun:
            logging.getLogger(
                "uvicorn.error"
            ).disabled = True  # it would tell in tracebacks what is cut off, which is wanted
            self.should_exit = self.force_exit = True
            self.forced = sig
        self._drain.begun = True

    async def on_tick(self, counter: int) -> bool:
        """Whether to end now; asked ten times a second."""
        return await super().on_tick(counter) or (self._drain.begun and not self._drain.open)
