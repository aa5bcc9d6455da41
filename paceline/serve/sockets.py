"""Open the listening socket of the server."""

from __future__ import annotations

import socket

from paceline.serve.protocol_settings import BACKLOG


def listen(host: str, port: int) -> socket.socket:
    """Open a TCP socket that listens on an address.

    Args:
        host: Host name or IP address.
        port: Port number; 0 selects any free port.
    Raises:
        OSError: The address is not available.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Without this option, the second packet of an answer arrives 40 ms late. asyncio sets the
    # option only for sockets that were created with an explicit protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
