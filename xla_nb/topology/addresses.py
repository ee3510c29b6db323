"""Addresses at which hosts reach each other.

The rule: asking for one sends nothing, and holding a port serves nothing.
"""

from __future__ import annotations

import socket


def own_address(towards: tuple[str, int]) -> str:
    """This machine's address on the interface that leads to another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(towards)
        address: str = probe.getsockname()[0]
        return address


def hold_port(host: str, port: int = 0) -> socket.socket:
    """A port that stays free for a service of ours (SO_REUSEPORT) until this is closed: bound,
    and not listening. Raises OSError."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held
