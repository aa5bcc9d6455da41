"""Open the listening socket of the server."""

from __future__ import annotations

import socket

from paceline.serve.protocol_settings import BACKLOG


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: Host name or address.
        port: Port; 0 selects any free port.
    Raises:
        OSError: The address is not available.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Without this option, the second packet of an answer is delayed by 40 ms. asyncio sets the
    # option only for sockets that name their protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
