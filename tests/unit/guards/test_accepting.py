"""Connections of a port: how many are accepted in a turn of the loop, and which one makes room. Work is counted."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from toolhub_service.guards.accepting import ACCEPTS_A_TURN, Accepted, Acceptor, Places

MOST = 50


class CountedConnection(Accepted):
    """Counts how often it is looked at, and aborted, when a place is looked for."""

    looks = 0

    def __init__(self, places: Places) -> None:
        super().__init__(socket.socket(), places)
        self.socket.close()
        self.aborts = 0
        self.abort = self._count

    def _count(self) -> None:
        self.aborts += 1

    def __hash__(self) -> int:
        type(self).looks += 1
        return id(self)


def test_to_make_room_looks_at_a_fixed_number_of_connections_however_many_there_are() -> None:
    """Fails at 513ce725: each new one looked at all, and again and again chose those that it had aborted already."""
    looks = []
    for most in (10, 1_000):
        places = Places(most)
        opened = [CountedConnection(places) for _ in range(3 * most)]
        CountedConnection.looks = 0
        for connection in opened:
            assert places.take(connection)
        looks.append(CountedConnection.looks / len(opened))
        assert len(places) == most
        assert [each.aborts for each in opened] == [1] * 2 * most + [0] * most, "each once, oldest first"
    assert looks[1] <= looks[0] * 1.1, looks


def test_unknown_callers_make_room_first_then_known_ones_and_busy_ones_never() -> None:
    places = Places(4)
    busy, known, older, newer = (CountedConnection(places) for _ in range(4))
    for each in (known, busy, older, newer):
        places.take(each)
    busy.begin()
    known.begin()
    known.rest(is_known=True)
    older.begin()
    older.rest(is_known=False)  # younger now
    newcomers = [CountedConnection(places) for _ in range(4)]
    for each in newcomers:
        places.take(each)
        each.begin()
    gone = [each.aborts for each in (newer, older, known, busy)]
    assert gone == [1, 1, 1, 0]
    assert [each.aborts for each in newcomers] == [0] * 4
    assert len(places) == 4


def test_when_all_are_busy_a_new_one_gets_no_place() -> None:
    places = Places(1)
    busy, late = CountedConnection(places), CountedConnection(places)
    assert places.take(busy)
    busy.begin()
    assert not places.take(late)
    busy.end()
    assert places.take(late)


def test_an_aborted_connection_that_reports_later_takes_no_place_again() -> None:
    places = Places(1)
    first, second = CountedConnection(places), CountedConnection(places)
    places.take(first)
    places.take(second)
    first.rest(is_known=True)
    first.end()
    assert len(places) == 1
    assert places.evict()
    assert (first.aborts, second.aborts) == (1, 1)


class Port:
    """An acceptor on a port, and what it has served."""

    def __init__(self, bound: socket.socket, serve: Any = None) -> None:
        self.bound = bound
        self.address = bound.getsockname()
        self.spoken: list[Accepted] = []
        self.acceptor = Acceptor([bound], serve or self._serve, max_connections=MOST, first_byte_s=60.0)

    async def _serve(self, accepted: Accepted) -> None:
        self.spoken.append(accepted)
        reader, writer = await asyncio.open_connection(sock=accepted.socket)
        accepted.abort = writer.transport.abort
        accepted.begin()
        writer.write(await reader.readline())
        writer.close()
        accepted.end()

    def connect(self, count: int) -> list[socket.socket]:
        return [socket.create_connection(self.address) for _ in range(count)]

    async def echo(self, text: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.address[:2])
        writer.write(text + b"\n")
        try:
            async with asyncio.timeout(60):
                return await reader.readline()
        finally:
            writer.transport.abort()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    port = Port(socket.create_server(("127.0.0.1", 0), backlog=1_024))
    port.acceptor.start()
    yield port
    port.acceptor.close()
    await port.acceptor.wait()


class CountingSocket:
    """The listening socket, counting what is accepted from it."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self.accepted = 0
        self.accept: Callable[[], tuple[socket.socket, Any]] = self._accept
        for name in ("fileno", "close", "setblocking", "getsockname"):
            setattr(self, name, getattr(real, name))

    def _accept(self) -> tuple[socket.socket, Any]:
        got = self._real.accept()
        self.accepted += 1
        return got


async def test_the_loop_does_other_work_after_a_few_accepted_connections() -> None:
    """Fails at 513ce725: as many as wait, 2,048 at most, are accepted in one turn."""
    counting: Any = CountingSocket(socket.create_server(("127.0.0.1", 0), backlog=1_024))
    port = Port(counting)
    waiting = port.connect(5 * ACCEPTS_A_TURN)
    port.acceptor.start()
    turns: list[int] = []
    while counting.accepted < len(waiting):
        before = counting.accepted
        await asyncio.sleep(0)  # one turn of the loop
        turns.append(counting.accepted - before)
    port.acceptor.close()
    assert max(turns) <= ACCEPTS_A_TURN
    for each in waiting:
        each.close()


async def test_silent_connections_make_room_for_one_that_speaks_and_cost_no_task(port: Port) -> None:
    silent = []
    tasks = len(asyncio.all_tasks())
    for _ in range(4):
        silent += port.connect(MOST)
        assert await port.echo(b"hello") == b"hello\n"
    assert len(port.spoken) == 4
    assert len(asyncio.all_tasks()) <= tasks + 1
    for each in silent[: 3 * MOST]:
        each.settimeout(60)
        assert each.recv(1) == b"", "the oldest were closed"
    for each in silent:
        each.close()


async def test_without_descriptors_idle_ones_are_closed_and_without_those_the_port_rests() -> None:
    counting: Any = CountingSocket(socket.create_server(("127.0.0.1", 0), backlog=1_024))
    port = Port(counting)
    port.acceptor.start()
    first = port.connect(2)
    while counting.accepted < 2:  # noqa: ASYNC110 - nothing rings when a connection was accepted
        await asyncio.sleep(0)
    tries = 0

    def no_descriptor() -> tuple[socket.socket, Any]:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "no descriptor is left")

    counting.accept = no_descriptor
    waiting = port.connect(1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert tries == 3, "two made room, then it rested"
    assert [each.recv(1) for each in first] == [b"", b""]
    port.acceptor.close()
    for each in [*first, *waiting]:
        each.close()


async def test_closing_cuts_off_what_is_being_served_and_what_was_never_begun() -> None:
    begun = asyncio.Event()

    async def serve(accepted: Accepted) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            accepted.socket.close()
            accepted.end()

    port = Port(socket.create_server(("127.0.0.1", 0)), serve)
    port.acceptor.start()
    served, begins, silent = port.connect(3)
    served.send(b"x")
    await begun.wait()
    begins.send(b"x")
    await asyncio.sleep(0)  # its first byte is seen, and its task has not begun
    port.acceptor.close()
    await port.acceptor.wait()
    for client in (served, begins, silent):
        client.settimeout(60)
        with suppress(ConnectionResetError):  # with its byte unread
            assert client.recv(1) == b""
        client.close()
