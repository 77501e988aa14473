"""Would a hub with these settings start, and what would it lack? Each check looks, changes nothing and never raises."""

from __future__ import annotations

import errno
import http.client
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from toolhub_service.app.deps import SystemRandomness
from toolhub_service.app.doctor.findings import Finding, fail, ok, warn
from toolhub_service.app.doctor.sources import source_checks
from toolhub_service.app.doctor.stored import kept_checks
from toolhub_service.app.file_modes import repairs
from toolhub_service.app.files import KeyFileInvalid
from toolhub_service.app.listening import ListenRefused, host_and_port, listening_of
from toolhub_service.app.offline import CannotLook, configured_tools, policy_file_of, policy_of
from toolhub_service.app.paths import Paths
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.tool import ToolState
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.settings.document import Settings

# Findings name the address and the problem, never the rest of a URL: it may hold a password.

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

    from toolhub_service.guards.masking import postgres_target
    from toolhub_service.stores.postgres_link import TROUBLE, reason_of

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


_OTHERS = 0o077


async def settings_checks(settings: Settings, config_file: Path | None = None) -> list[Finding]:
    return [
        *_ports(settings),
        _policy(settings),
        _auth(settings),
        *_loose_files(settings, config_file),
        *_secret_files(Paths(settings)),
        *kept_checks(settings),
        _tracing(settings),
        *_stores(settings),
        *[finding async for finding in server_checks(settings)],
        *await _tools(settings),
        *source_checks(settings),
    ]


def _ports(settings: Settings) -> Iterator[Finding]:
    server, metrics = settings.server.listen, settings.metrics.listen
    if server.startswith("unix"):
        yield ok("server port", server)
    else:
        yield _port("server port", "server.listen", server, lambda _host, _port: is_hub(server))
    yield _port("metrics port", "metrics.listen", metrics, is_metrics) if metrics else ok("metrics port", "none is set")


def _port(name: str, setting: str, address: str, is_ours: Callable[[str, int], bool]) -> Finding:
    try:
        host, port = host_and_port(setting, address)
    except ListenRefused as wrong:
        return fail(name, str(wrong), "Correct it.")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
    except OSError as taken:
        if taken.errno == errno.EADDRINUSE and is_ours(host, port):
            return ok(name, f"{address}: a hub serves there")
        told = f"{address}: {taken.strerror}"
        return warn(name, told, "If that is no hub of yours, stop what listens there or choose another port.")
    return ok(name, f"{address} is free")


def _policy(settings: Settings) -> Finding:
    file = policy_file_of(settings)
    try:
        revision = policy_of(file).revision[:12]
    except InvalidPolicy as invalid:
        return fail("policy", f"{file}: {invalid}", "Correct it; `toolhub policy check` says when it is right.")
    except CannotLook as unreadable:
        return fail("policy", str(unreadable), "Let the hub's user read it.")
    if file is None:
        return ok("policy", f"the built-in starter, revision {revision}; `toolhub policy init` begins your own")
    return ok("policy", f"{file}, revision {revision}")


def _auth(settings: Settings) -> Finding:
    modes = ", ".join(settings.auth.modes)
    try:
        listening_of(settings)
    except ListenRefused as refused:
        return fail("auth", modes, str(refused))
    try:
        keys = Paths(settings).key_file().read()
    except (OSError, KeyFileInvalid) as broken:
        return fail("auth", str(broken), "Correct or remove the file.")
    if settings.auth.modes == ("api-key",) and not keys:
        return warn("auth", "api-key, and there is no key yet", "Make one: `toolhub keys create NAME`.")
    if unknown := _unknown(settings, sorted({key.name for key in keys.values()})):
        told = f"keys of principals that the policy names nowhere, which may do nothing: {', '.join(unknown)}"
        return warn("auth", told, "Name them under `grants` or `roles` in policy.yaml, or revoke their keys.")
    return ok("auth", f"{modes}; API keys: {len(keys)}")


def _unknown(settings: Settings, names: list[str]) -> list[str]:
    """Of these principals, those that the policy gives nothing; none where it cannot be read, which is told apart."""
    try:
        policy = policy_of(policy_file_of(settings))
    except (InvalidPolicy, CannotLook):
        return []
    return [name for name in names if not policy.principal(name).roles]


def _loose_files(settings: Settings, config_file: Path | None) -> Iterator[Finding]:
    """The hub itself refuses to start on these."""
    commands = repairs(settings, config_file)
    tell = fail if settings.loose_files == "refuse" else warn
    for command in commands:
        yield tell("file modes", "others may write (or read a key) what this hub trusts", command)
    if not commands:
        yield ok("file modes", "policy, keys, sources, databases and the folders above them are nobody else's to write")


def _secret_files(paths: Paths) -> Iterator[Finding]:
    """Files that hold keys must be their owner's alone."""
    exposed = [file for file in _standing(paths) if file.stat().st_mode & _OTHERS]
    for file in exposed:
        yield fail("key files", f"{file} can be read by others", f"chmod 600 {file}, and consider its keys known.")
    if not exposed:
        yield ok("key files", "readable by their owner only" if any(_standing(paths)) else "none yet")


def _standing(paths: Paths) -> Iterator[Path]:
    for file in (paths.audit_key, paths.plan_key, paths.api_keys):
        if file.exists() and os.access(file.parent, os.X_OK):
            yield file


def _tracing(settings: Settings) -> Finding:
    endpoint = settings.tracing.otlp_endpoint
    if not endpoint:
        return ok("tracing", "off: tracing.otlp_endpoint is empty")
    if find_spec("opentelemetry.exporter") is None:
        return fail("tracing", f"{endpoint} is configured, the exporter missing", "pip install 'tool-hub[otlp]'")
    return ok("tracing", endpoint)


def _stores(settings: Settings) -> Iterator[Finding]:
    """What the configuration wants and nobody has installed."""
    wanted = {
        "stores.redis_url": (settings.stores.redis_url, "redis", "redis"),
        "stores.postgres_url": (settings.stores.postgres_url, "psycopg", "postgres"),
        "jobs.engine": (settings.jobs.engine == "docket", "docket", "docket"),
        "artifacts.bucket_url": (settings.artifacts.bucket_url, "obstore", "s3"),
    }
    missing = [
        fail("stores", f"{name} is set and {package} is not installed", f"pip install 'tool-hub[{extra}]'")
        for name, (is_set, package, extra) in wanted.items()
        if is_set and find_spec(package) is None
    ]
    shared = ", ".join(name for name, (is_set, _, _) in wanted.items() if is_set)
    yield from missing or [ok("stores", shared or f"{settings.stores.kind} of this hub alone")]


async def _tools(settings: Settings) -> list[Finding]:
    try:
        tools = await configured_tools(settings)
    except ToolFailure as refused:
        return [fail("tools", refused.error.message, "Correct tools.custom or tools.trusted_namespaces.")]
    lacking = sorted((tool.state_reason, tool.name) for tool in tools if tool.state is ToolState.UNAVAILABLE)
    findings = [
        warn("tools", reason, "See to what it says, or leave these tools out.", *(name for _, name in group))
        for reason, group in groupby(lacking, key=lambda each: each[0])
    ]
    active = sum(tool.state is ToolState.ACTIVE for tool in tools)
    return [ok("tools", f"{active} of {len(tools)} can be called"), *findings]
