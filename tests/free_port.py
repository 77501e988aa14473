"""Ports for servers that a test stops and starts again where they were."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

_CHANCE = SystemRandom()


def _not_the_kernels() -> range:
    """Ports below those that the kernel chooses by itself; empty where it chooses of all."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        lowest = 32_768
    return range(10_000, lowest)


_PORTS = _not_the_kernels() or (0,)


def free_port() -> int:
    """A TCP port of the loopback that stays free while nobody listens: none that the kernel gives to connections."""
    while True:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", _CHANCE.choice(_PORTS)))
            port: int = listener.getsockname()[1]
            return port
