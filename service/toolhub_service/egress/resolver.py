"""DNS by the operating system, in threads of its own: a slow name server must not delay other work.

Nothing is cached here: an answer is checked and used at once, and connections are kept alive instead.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_THREADS = 8


class SystemResolver:
    """The port `Resolver` on getaddrinfo."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")
        self._is_closed = False

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host in the system's order of preference. Raises OSError when it has none, or once
        closed."""
        if self._is_closed:
            raise OSError("the resolver is closed")
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._threads, _look_up, host, port)
        return list(dict.fromkeys(answers))

    def close(self) -> None:
        """Release the threads; a running lookup ends by itself."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    return [str(answer[4][0]) for answer in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
