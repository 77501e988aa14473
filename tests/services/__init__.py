"""Real Redis, PostgreSQL, Chromium and X for tests: a configured server, or a program that is found and started.

    redis_url, postgres_url    an empty database of one's own
    own_redis, own_postgres    a whole server of one's own, to be killed and started again
    chromium, display          the path of a browser, and an X display of the session

`python -m tests.services` installs what is missing. Where a service cannot be had the test is skipped with the reason,
or fails when TOOLHUB_REQUIRE_SERVICES=1.
"""

from __future__ import annotations

from tests.services.fixtures import (
    chromium,
    display,
    empty_databases,
    hub_databases,
    hub_postgres_url,
    own_postgres,
    own_redis,
    postgres_url,
    redis_url,
    shared_postgres,
    shared_redis,
)
from tests.services.postgres_server import PostgresServer
from tests.services.redis_server import RedisServer

__all__ = [
    "PostgresServer",
    "RedisServer",
    "chromium",
    "display",
    "empty_databases",
    "hub_databases",
    "hub_postgres_url",
    "own_postgres",
    "own_redis",
    "postgres_url",
    "redis_url",
    "shared_postgres",
    "shared_redis",
]
