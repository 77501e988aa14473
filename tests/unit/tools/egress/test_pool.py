from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from toolhub_service.guards.urls import JudgedUrl
from toolhub_service.tools.egress.connection import HttpConnection
from toolhub_service.tools.egress.pool import IdleConnections


@dataclass
class Idle:
    """A connection as far as the pool looks at it."""

    usable: bool = True
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True

    @property
    def as_connection(self) -> HttpConnection:
        return cast(HttpConnection, self)


def url(host: str = "a.example", port: int = 80, *opened: str) -> JudgedUrl:
    return JudgedUrl("http", host, port, "/", False, opened)


def test_newest_connection_is_taken_first_and_only_once() -> None:
    pool, old, new = IdleConnections(), Idle(), Idle()
    pool.give(url(), old.as_connection)
    pool.give(url(), new.as_connection)
    assert [pool.take(url()) for _ in range(3)] == [new.as_connection, old.as_connection, None]


def test_other_origin_or_other_opened_networks_get_nothing() -> None:
    pool = IdleConnections()
    pool.give(url("a.example", 80, "10.0.0.0/8"), Idle().as_connection)
    for other in (
        url(),
        url("a.example", 81, "10.0.0.0/8"),
        url("b.example", 80, "10.0.0.0/8"),
        url("a.example", 80, "10.0.0.0/9"),
    ):
        assert pool.take(other) is None


def test_dead_and_expired_connections_are_closed_not_taken() -> None:
    now_s = [0.0]
    pool = IdleConnections(keep_alive_s=15, monotonic_s=lambda: now_s[0])
    dead, stale = Idle(usable=False), Idle()
    pool.give(url(), stale.as_connection)
    pool.give(url(), dead.as_connection)
    now_s[0] = 16
    assert pool.take(url()) is None
    assert dead.is_closed
    assert stale.is_closed


def test_idle_connections_are_bounded_per_origin_and_altogether() -> None:
    now_s = [0.0]
    pool = IdleConnections(idle_max=3, idle_per_origin_max=2, keep_alive_s=15, monotonic_s=lambda: now_s[0])
    first = [Idle() for _ in range(3)]
    for idle in first:
        pool.give(url(), idle.as_connection)
    assert [idle.is_closed for idle in first] == [False, False, True]
    second = [Idle() for _ in range(2)]
    for idle in second:
        pool.give(url("b.example"), idle.as_connection)
    assert [idle.is_closed for idle in second] == [False, True]
    now_s[0] = 16
    late = Idle()
    pool.give(url("c.example"), late.as_connection)
    assert not late.is_closed
    assert all(idle.is_closed for idle in first + second)


def test_closed_pool_keeps_nothing() -> None:
    pool, kept, late = IdleConnections(), Idle(), Idle()
    pool.give(url(), kept.as_connection)
    pool.close()
    pool.give(url(), late.as_connection)
    assert kept.is_closed
    assert late.is_closed
