"""Shut down a server once its open requests have finished."""

from __future__ import annotations

import logging
from types import FrameType

import uvicorn

from paceline.serve.settings import ConnectionSettings

_log = logging.getLogger("paceline.serve")


class ShutdownState:
    """Tracks whether the server is shutting down, and how many requests are open.

    Attributes:
        begun: Whether the shutdown has begun. From then on, the server rejects new requests.
        open: Number of requests that have not finished.
    """

    def __init__(self) -> None:
        self.begun = False
        self.open = 0


class DrainingServer(uvicorn.Server):
    """A uvicorn server that keeps listening until all open requests have finished.

    Clients can therefore query the server's health during shutdown. SIGTERM or Ctrl-C begins the
    shutdown. If requests are open, the server logs their number. A second signal stops the server
    immediately.

    Args:
        config: uvicorn settings.
        drain: Shutdown state, shared with the application.
    Attributes:
        forced: Signal number of the second signal, which stops the server immediately; None before
            that signal.
    """

    def __init__(self, config: uvicorn.Config, drain: ShutdownState) -> None:
        config.timeout_graceful_shutdown = ConnectionSettings().close_seconds
        super().__init__(config)
        self._drain = drain
        self.forced: int | None = None
        self._has_logged = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; on a second signal, stop the server immediately."""
        if self._drain.begun:
            # uvicorn would log a traceback for every aborted request.
            logging.getLogger("uvicorn.error").disabled = True
            self.should_exit = self.force_exit = True
            self.forced = sig
        self._drain.begun = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server should exit; uvicorn calls this ten times a second."""
        if self._drain.begun and not self._has_logged:
            self._has_logged = True
            self._log_open_requests()
        return await super().on_tick(counter) or (self._drain.begun and not self._drain.open)

    def _log_open_requests(self) -> None:
        count = self._drain.open
        if count and self.forced is None:
            _log.info(
                "stopping: waiting for %d open request%s; another Ctrl-C or SIGTERM stops now",
                count,
                "s" * (count > 1),
            )
