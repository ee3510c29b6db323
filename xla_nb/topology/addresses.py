"""Addresses and ports through which the hosts of a run reach each other."""

from __future__ import annotations

import socket


def own_address(peer: tuple[str, int]) -> str:
    """This machine's address on the interface that leads to a peer. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(peer)
        address: str = probe.getsockname()[0]
        return address


def hold_port(host: str, port: int = 0) -> socket.socket:
    """Reserve a port (SO_REUSEPORT) for one of our services until the socket is closed: it is bound
    but does not listen. Raises OSError."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
