"""Accepts the connections of a port: a few in one turn of the event loop, and at most a fixed number open at once.

One too many takes the place of the one that has been idle longest, first among those whose caller is unknown; where all
are busy, the new one is closed. Each such decision takes constant time, however many connections there are: a peer that
opens hundreds a second, without a byte or a credential, costs the hub in proportion to what it opens, and no more.

Until its first byte, a connection costs a descriptor and a timer.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final

ACCEPTS_A_TURN: Final = 16
"""Connections accepted before the loop does other work."""
BACKLOG: Final = 1_024
"""Connections that wait in the kernel meanwhile; the system may allow fewer (`net.core.somaxconn`)."""
# Of accept(2): nothing is waiting, or what was waiting has gone.
_GONE: Final = frozenset({errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO})
_RETRY_S: Final = 1.0


class Accepted:
    """A connection of an Acceptor. It begins idle, its caller unknown."""

    def __init__(self, connection: socket.socket, places: Places) -> None:
        self.socket = connection
        self.abort: Callable[[], object] = connection.close
        """Closes it at once. Whoever wraps the socket replaces this."""
        self._places = places

    def begin(self) -> None:
        """A request is under way: nobody takes the place until `rest`."""
        self._places.keep(self)

    def rest(self, *, is_known: bool) -> None:
        """It waits for a request, from now on. `is_known`: its last one was of an admitted caller."""
        self._places.offer(self, is_known=is_known)

    def end(self) -> None:
        """It is closed: the place is free."""
        self._places.free(self)


class Places:
    """Who holds the places of a port, and who is idle, in order of age: OrderedDicts, whose first entry is found in
    constant time after any number of removals."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[Accepted] = set()
        self._unknown: OrderedDict[Accepted, None] = OrderedDict()
        self._known: OrderedDict[Accepted, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def take(self, new: Accepted) -> bool:
        """Give the new connection a place, if need be that of an idle one, which is aborted."""
        if len(self._open) >= self._most and not self.evict():
            return False
        self._open.add(new)
        self._unknown[new] = None
        return True

    def evict(self) -> bool:
        """Abort the connection that has been idle longest; False when none is idle."""
        for idle in (self._unknown, self._known):
            if idle:
                oldest, _ = idle.popitem(last=False)
                self._open.discard(oldest)
                oldest.abort()
                return True
        return False

    def keep(self, connection: Accepted) -> None:
        self._unknown.pop(connection, None)
        self._known.pop(connection, None)

    def offer(self, connection: Accepted, *, is_known: bool) -> None:
        self.keep(connection)
        if connection in self._open:
            (self._known if is_known else self._unknown)[connection] = None

    def free(self, connection: Accepted) -> None:
        self.keep(connection)
        self._open.discard(connection)


class Acceptor:
    """Call `start`, then `close`."""

    def __init__(
        self,
        bound: Sequence[socket.socket],
        serve: Callable[[Accepted], Coroutine[None, None, None]],
        *,
        max_connections: int,
        first_byte_s: float,
    ) -> None:
        """`bound`: sockets that listen; they are closed with the acceptor. `serve` is called once a connection has sent
        its first byte, for which it has `first_byte_s`; it wraps the connection's socket and sees that `end` is called.
        It is cancelled when the connection loses its place, unless it has set another `abort`."""
        self._bound = tuple(bound)
        self._serve = serve
        self._first_byte_s = first_byte_s
        self._places = Places(max_connections)
        self._silent: dict[Accepted, asyncio.TimerHandle] = {}
        self._serving: dict[Accepted, asyncio.Task[None]] = {}
        self._resuming: asyncio.TimerHandle | None = None

    def start(self) -> None:
        for bound in self._bound:
            bound.setblocking(False)
            asyncio.get_running_loop().add_reader(bound, self._accept, bound)

    def close(self) -> None:
        """Accept no more, and close the connections that have sent nothing. May be called again."""
        if self._resuming is not None:
            self._resuming.cancel()
        for bound in self._bound:
            if bound.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(bound)
                bound.close()
        for connection in [*self._silent, *self._serving]:
            connection.abort()

    async def wait(self) -> None:
        """Once closed: wait until every `serve` has ended."""
        if self._serving:
            await asyncio.wait(set(self._serving.values()))

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, _address = bound.accept()
            except OSError as none:
                if none.errno not in _GONE and not self._places.evict():
                    self._pause()  # no descriptor is left (EMFILE), and none of these connections can be closed
                return
            accepted.setblocking(False)
            self._admit(accepted)

    def _pause(self) -> None:
        """The socket stays readable: without a pause, the loop would do nothing else."""
        loop = asyncio.get_running_loop()
        for bound in self._bound:
            loop.remove_reader(bound)
        self._resuming = loop.call_later(_RETRY_S, self.start)

    def _admit(self, accepted: socket.socket) -> None:
        connection = Accepted(accepted, self._places)
        if not self._places.take(connection):
            accepted.close()
            return
        connection.abort = partial(self._drop, connection)
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(self._first_byte_s, connection.abort)
        loop.add_reader(accepted, self._hand_over, connection)

    def _drop(self, connection: Accepted) -> None:
        """Close a connection that nothing wraps yet."""
        self._forget_silence(connection)
        if (serving := self._serving.get(connection)) is not None:
            serving.cancel()
        connection.socket.close()
        connection.end()

    def _forget_silence(self, connection: Accepted) -> None:
        if (late := self._silent.pop(connection, None)) is not None:
            late.cancel()
            asyncio.get_running_loop().remove_reader(connection.socket)

    def _hand_over(self, connection: Accepted) -> None:
        self._forget_silence(connection)
        serving = self._serving[connection] = asyncio.create_task(self._serve_one(connection))
        serving.add_done_callback(lambda _: self._serving.pop(connection))

    async def _serve_one(self, connection: Accepted) -> None:
        # Not before: a task that is cancelled before it begins would leave the socket open.
        connection.abort = self._serving[connection].cancel
        await self._serve(connection)
