"""Fixtures: the session's servers, an empty database for each test, and whole servers for tests of outages."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import pytest

from tests.missing import give_up, required
from tests.services.postgres_server import PostgresServer
from tests.services.programs import CHROMIUM, POSTGRES, REDIS, XVFB, Service, Unavailable, install, need
from tests.services.redis_server import RedisServer

if TYPE_CHECKING:
    from tests.services.empty_databases import EmptyDatabases

REDIS_URL = "TOOLHUB_TEST_REDIS_URL"
POSTGRES_URL = "TOOLHUB_TEST_POSTGRES_URL"
WORKER = "PYTEST_XDIST_WORKER"
_numbers = count()

Server = TypeVar("Server", RedisServer, PostgresServer)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[str]:
    """URL of the session's Redis, without a database: tests ask for `redis_url`."""
    if configured := os.environ.get(REDIS_URL):
        yield configured
        return
    with _served(REDIS, RedisServer) as server:
        yield server.url


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[str]:
    """URL of the session's PostgreSQL, whose user may create databases: tests ask for `postgres_url`."""
    if configured := os.environ.get(POSTGRES_URL):
        yield configured
        return
    with _served(POSTGRES, PostgresServer) as server:
        yield server.url


@pytest.fixture
def redis_url(shared_redis: str) -> str:
    """An empty database of the session's Redis; of a configured one that which its URL names, emptied.

    Of several workers of one session (pytest-xdist) each has a database of its own: the n-th after that one.
    """
    import redis

    if REDIS_URL in os.environ:
        number = int(urlsplit(shared_redis).path.strip("/") or 0) + int(
            os.environ.get(WORKER, "gw0").removeprefix("gw")
        )
    else:
        number = next(_numbers) % 16
    url = urlsplit(shared_redis)._replace(path=f"/{number}").geturl()
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def empty_databases(shared_postgres: str) -> Iterator[EmptyDatabases]:
    """Those of the session's PostgreSQL: tests ask for `postgres_url`."""
    from tests.services.empty_databases import EmptyDatabases

    databases = EmptyDatabases(shared_postgres)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(empty_databases: EmptyDatabases) -> Iterator[str]:
    """An empty database."""
    name = empty_databases.take()
    yield empty_databases.url(name)
    empty_databases.give_back(name)


@pytest.fixture(scope="session")
def hub_databases(shared_postgres: str) -> Iterator[EmptyDatabases]:
    """Those of the session's PostgreSQL in which a hub's tables lie: tests ask for `hub_postgres_url`."""
    from tests.services.empty_databases import EmptyDatabases
    from tests.unit.stores.postgres.postgres_links import make_tables

    databases = EmptyDatabases(shared_postgres, make_tables)
    yield databases
    databases.close()


@pytest.fixture
def hub_postgres_url(hub_databases: EmptyDatabases) -> Iterator[str]:
    """A database with the tables of a hub, all of them empty: to make them takes ten times as long as most tests."""
    name = hub_databases.take()
    yield hub_databases.url(name)
    hub_databases.give_back(name)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A running Redis that nobody else uses: to be stopped, killed, frozen and started again."""
    with _served(REDIS, RedisServer) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL that nobody else uses: to be stopped, killed and started again."""
    with _served(POSTGRES, PostgresServer) as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the system's Chromium, where there is what drives it."""
    if find_spec("playwright") is None:
        give_up("playwright is not installed: toolhub extras install browser")
    return _program(CHROMIUM)


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """An X display of the session's own: white, 640 x 480 pixels."""
    reading, writing = os.pipe()
    command = [_program(XVFB), "-displayfd", str(writing), "-screen", "0", "640x480x24", "-wr", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[writing], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(writing)
    try:
        with os.fdopen(reading) as output:
            number = output.readline().strip()
        if not number:
            give_up(f"{command[0]} did not start: run it in a terminal to see why, or apt-get install --reinstall xvfb")
        yield f":{number}"
    finally:
        server.terminate()
        server.wait()


def _program(service: Service) -> str:
    try:
        if required():
            install(service)
        return str(need(service) / service.programs[0])
    except Unavailable as unavailable:
        give_up(str(unavailable))


@contextmanager
def _served(service: Service, make: Callable[[Path], Server]) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="toolhub-test-", ignore_cleanup_errors=True) as folder:
        # The servers may run as another user.
        Path(folder).chmod(0o755)
        try:
            if required():
                install(service)
            server = make(Path(folder))
            server.start()
        except Unavailable as unavailable:
            give_up(str(unavailable))
        try:
            yield server
        finally:
            server.stop()
