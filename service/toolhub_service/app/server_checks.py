"""Do the servers answer that the hub shares with others, and is it a hub that has the ports? Each is asked, briefly.

The address and the trouble are told, never what a URL holds besides.
"""

from __future__ import annotations

import http.client
from collections.abc import AsyncIterator
from importlib.util import find_spec

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from toolhub_service.app.findings import Finding, fail, ok
from toolhub_service.app.system import SystemRandomness
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.settings.document import Settings

_WAIT_S = 3.0
_START_IT = "Start it, or correct its URL, user and password: the hub does not start without it."


async def server_checks(settings: Settings) -> AsyncIterator[Finding]:
    """A finding for each shared server that is configured and whose packages are there."""
    if settings.stores.redis_url and find_spec("redis"):
        yield await _redis(settings.stores.redis_url)
    if settings.stores.postgres_url and find_spec("psycopg"):
        yield await _postgres(settings.stores.postgres_url)


async def _redis(url: str) -> Finding:
    from toolhub_service.stores.redis_link import RedisLink

    try:
        link = RedisLink(url, SystemRandomness(), patience_s=_WAIT_S)
    except HubFailure as wrong:
        return fail("redis", wrong.message, "Correct it.")
    try:
        await link.start()
    except ToolFailure as away:
        return fail("redis", str(away.error.details["reason"]), _START_IT)
    except HubFailure as unfit:
        return fail("redis", unfit.message, "Change it there.")
    finally:
        await link.close()
    return ok("redis", "answers")


async def _postgres(url: str) -> Finding:
    from psycopg import AsyncConnection

    from toolhub_service.guards.postgres_urls import postgres_target
    from toolhub_service.stores.postgres_trouble import TROUBLE, reason_of

    try:
        target = postgres_target(url, application="toolhub doctor")
    except HubFailure as wrong:
        return fail("postgres", wrong.message, "Correct it.")
    try:
        async with await AsyncConnection.connect(target.conninfo, connect_timeout=int(_WAIT_S)) as connection:
            await connection.execute("SELECT 1")
    except TROUBLE as trouble:
        return fail("postgres", f"{target.shown}: {reason_of(trouble)}", _START_IT)
    return ok("postgres", f"{target.shown} answers")


def is_hub(address: str) -> bool:
    """Whether a hub answers on that port in plaintext: one with TLS cannot be told from a stranger."""
    with grpc.insecure_channel(address) as channel:
        try:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_WAIT_S / 3)
        except grpc.RpcError:
            return False
    return True


def is_metrics(host: str, port: int) -> bool:
    """Whether a hub's metrics are served there."""
    connection = http.client.HTTPConnection(host, port, timeout=_WAIT_S / 3)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read(16) == b"ok\n"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
