"""A place where clients can come."""

from __future__ import annotations

import socket

_BACKLOG = 2048  # connections that may wait to be taken


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0 = any that is free.

    Raises:
        OSError: the address cannot be had.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    # Else the second packet of an answer waits 40 ms. asyncio sets it where a socket names its
    # protocol only.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
