"""Would a hub with these settings start, and what would it lack? Each check looks, changes nothing and never raises."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import sqlite3
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from toolhub_service.adapters.core import CORE_SOURCE
from toolhub_service.app.deps import SystemRandomness
from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.doctor.certificates import certificate_checks
from toolhub_service.app.doctor.credentials import auth_check
from toolhub_service.app.doctor.mcp import mcp_checks
from toolhub_service.app.doctor.remote import database_checks, issuer_checks
from toolhub_service.app.doctor.retention import retention_checks
from toolhub_service.app.doctor.sources import source_checks
from toolhub_service.app.doctor.vault import credential_checks
from toolhub_service.app.file_modes import repairs
from toolhub_service.app.files import SecretFileInvalid, read_or_make_key
from toolhub_service.app.listening import (
    SVID_DOCTOR_S,
    ListenRefused,
    host_and_port,
    open_certificates,
    tls_certificate_of,
)
from toolhub_service.app.offline import OfflineRefused, configured_tools, policy_file_of, policy_of
from toolhub_service.app.paths import Paths
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.tool import ToolState
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.chain import open_keyring
from toolhub_service.stores.sqlite_migrations import MIGRATIONS
from toolhub_service.tools.web.screenshot import find_browser

# Is what the hub keeps whole: its databases, its keys? Looked at without changing a byte, whether a hub runs or not.
#
# SQLite's own `quick_check` (sqlite.org/pragma.html) finds damaged pages, which a hub meets only when it comes to them.
# What needs the audit log read event by event is left to `toolhub audit verify`.

# A larger file is only opened: to read it all would take longer than somebody waits.
_READ_MAX_BYTES = 256 * 1024**2
_RESTORE = "Keep a copy, and restore it from a backup; docs/operations.md tells what is lost without one."


def kept_checks(settings: Settings) -> Iterator[Finding]:
    """Files that are not there yet are no trouble: the hub makes them."""
    paths, stores = Paths(settings), settings.stores
    if not stores.postgres_url:
        yield from _database("audit log", paths.audit)
    yield from _audit_key(paths, has_events=paths.audit.exists() and not stores.postgres_url)
    if not stores.redis_url and stores.kind == "sqlite":
        yield from _database("hub's store", paths.stores, version_max=len(MIGRATIONS))
    yield from _plan_key(paths.plan_key)


def _database(name: str, path: Path, version_max: int = 0) -> Iterator[Finding]:
    try:
        if not path.exists():
            return
        size_bytes = path.stat().st_size
        problem, version = _looked_at(path, is_read_whole=size_bytes <= _READ_MAX_BYTES)
    except sqlite3.OperationalError as unreadable:
        yield fail(name, f"{path}: {unreadable}", "Check its owner and mode, and the disk.")
    except (sqlite3.DatabaseError, OSError) as damaged:
        yield fail(name, f"{path}: {damaged}", _RESTORE)
    else:
        if problem:
            yield fail(name, f"{path} is damaged: {problem}", _RESTORE)
        elif version_max and version > version_max:
            text = f"{path} has version {version}, and this hub knows {version_max}"
            yield fail(name, text, "Start the newer hub, or move the file away.")
        else:
            how = "whole" if size_bytes <= _READ_MAX_BYTES else "can be opened; too large to be read here"
            yield ok(name, f"{path}, {size_bytes / 1024**2:,.1f} MiB, {how}")


def _looked_at(path: Path, *, is_read_whole: bool) -> tuple[str, int]:
    """(what is wrong, layout version). Without a log beside it nobody writes, and SQLite need make no file to read."""
    has_log = path.with_name(f"{path.name}-wal").exists()
    # Without a log nobody writes: `immutable` then opens it without making -wal and -shm files beside it.
    uri = path.absolute().as_uri() + ("?mode=ro" if has_log else "?immutable=1")
    with closing(sqlite3.connect(uri, uri=True, timeout=2.0)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not is_read_whole:
            return "", version
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return ("" if answer == "ok" else " ".join(answer.split())), version


def _audit_key(paths: Paths, *, has_events: bool) -> Iterator[Finding]:
    if not paths.audit_key.exists() and not has_events:
        return
    try:
        open_keyring(paths.audit_key, create=False)
    except HubFailure as unusable:
        if unusable.reason.name != "AUDIT_KEY_EXPOSED":  # reported among the key files
            yield fail("audit key", unusable.message, "Restore it from a backup: nothing else verifies what it sealed.")
    except OSError as unreadable:
        yield fail("audit key", f"{paths.audit_key}: {unreadable.strerror}", "Let the hub's user read it.")


def _plan_key(path: Path) -> Iterator[Finding]:
    try:
        if path.exists():
            read_or_make_key(path)
    except SecretFileInvalid as invalid:
        yield fail("plan key", str(invalid), "Remove it, or restore it: without it open plans must be shown again.")
    except OSError as unreadable:
        yield fail("plan key", f"{path}: {unreadable.strerror}", "Let the hub's user read it.")


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

    from toolhub_service.stores.postgres_link import TROUBLE, reason_of
    from toolhub_service.stores.postgres_target import postgres_target

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
    """Whether a hub answers on that port in plaintext."""
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
        *port_checks(settings),
        *[finding async for finding in mcp_checks(settings, partial(_port, "mcp port", "server.mcp.listen"))],
        _policy(settings),
        auth_check(settings),
        *certificate_checks(settings),
        *_loose_files(settings, config_file),
        *_secret_files(Paths(settings)),
        *kept_checks(settings),
        *retention_checks(settings),
        _tracing(settings),
        *store_checks(settings),
        *credential_checks(settings),
        *[finding async for finding in server_checks(settings)],
        *[finding async for finding in issuer_checks(settings)],
        *[finding async for finding in database_checks(settings)],
        *await _tools(settings),
        *_browser(settings),
        *source_checks(settings),
    ]


def port_checks(settings: Settings) -> Iterator[Finding]:
    server, metrics = settings.server.listen, settings.metrics.listen
    if server.startswith("unix"):
        yield ok("server port", server)
    else:
        yield _port("server port", "server.listen", server, partial(is_own, settings))
    if keys := settings.server.tls.keys_listen:
        yield _port("keys port", "server.tls.keys_listen", keys, partial(is_own, settings))
    yield _port("metrics port", "metrics.listen", metrics, is_metrics) if metrics else ok("metrics port", "none is set")


def is_own(settings: Settings, host: str, port: int) -> bool:
    """Whether a hub with these settings serves there; with TLS it is known by its certificate."""
    if not settings.has_tls:
        return is_hub(settings.server.listen)
    if not settings.server.tls.certificate_file:
        return _shows_our_id(settings, tls_certificate_of(host or "127.0.0.1", port, _WAIT_S / 3))
    try:
        pem = Path(settings.server.tls.certificate_file).read_text()
        configured = ssl.PEM_cert_to_DER_cert(pem[: pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)])
    except (OSError, ValueError):
        return False  # the hub refuses to start with it, and says why
    return tls_certificate_of(host or "127.0.0.1", port, _WAIT_S / 3) == configured


def _shows_our_id(settings: Settings, certificate: bytes | None) -> bool:
    """Whether it has the SPIFFE id that the Workload API gives here: the certificate itself is another each hour."""
    try:
        id = open_certificates(settings, SVID_DOCTOR_S).spiffe_id
    except ListenRefused:
        return False
    return certificate is not None and id.encode() in certificate


def _port(name: str, setting: str, address: str, is_ours: Callable[[str, int], bool]) -> Finding:
    try:
        host, port = host_and_port(setting, address)
    except ListenRefused as wrong:
        return fail(name, str(wrong), "Correct it.")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            # A port in TIME_WAIT is no obstacle to the hub either.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
    except OSError as taken:
        if taken.errno == errno.EADDRINUSE and is_ours(host, port):
            return ok(name, f"{address}: a hub serves there")
        text = f"{address}: {taken.strerror}"
        return warn(name, text, "If that is not your hub, stop what listens there or choose another port.")
    return ok(name, f"{address} is free")


def _policy(settings: Settings) -> Finding:
    file = policy_file_of(settings)
    try:
        revision = policy_of(file).revision[:12]
    except InvalidPolicy as invalid:
        return fail("policy", f"{file}: {invalid}", "Correct it, then run `toolhub policy check`.")
    except OfflineRefused as unreadable:
        return fail("policy", str(unreadable), "Let the hub's user read it.")
    if file is None:
        return ok("policy", f"the built-in starter, revision {revision}; `toolhub policy init` begins your own")
    return ok("policy", f"{file}, revision {revision}")


def _loose_files(settings: Settings, config_file: Path | None) -> Iterator[Finding]:
    """The hub itself refuses to start on these."""
    commands = repairs(settings, config_file)
    tell = fail if settings.loose_files == "refuse" else warn
    for command in commands:
        yield tell("file modes", "other users may write files that this hub trusts, or read a key", command)
    if not commands:
        yield ok("file modes", "other users cannot write policy, keys, sources, databases and the folders above them")


def _secret_files(paths: Paths) -> Iterator[Finding]:
    """Files that hold keys must be their owner's alone."""
    exposed = [file for file in _standing(paths) if file.stat().st_mode & _OTHERS]
    for file in exposed:
        yield fail("key files", f"{file} can be read by others", f"chmod 600 {file}, and consider its keys known.")
    if not exposed:
        yield ok("key files", "readable by their owner only" if any(_standing(paths)) else "none yet")


def _standing(paths: Paths) -> Iterator[Path]:
    for file in (paths.audit_key, paths.plan_key, paths.api_keys, paths.credentials_key, paths.backup_key):
        if file.exists() and os.access(file.parent, os.X_OK):
            yield file


def _tracing(settings: Settings) -> Finding:
    endpoint = settings.tracing.otlp_endpoint
    if not endpoint:
        return ok("tracing", "off: tracing.otlp_endpoint is empty")
    if find_spec("opentelemetry.exporter") is None:
        return fail("tracing", f"{endpoint} is configured, the exporter missing", "pip install 'tool-hub[otlp]'")
    return ok("tracing", endpoint)


def store_checks(settings: Settings) -> Iterator[Finding]:
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
    stores = settings.stores
    if stores.kind == "postgres" and not stores.postgres_url:
        yield fail(
            "stores", "stores.kind is postgres, stores.postgres_url is empty", "Set it, or stores.kind to sqlite."
        )
    elif missing:
        yield from missing
    elif stores.postgres_url and not stores.redis_url and stores.kind != "postgres":
        yield ok("stores", f"{shared}; keys, approvals and pins: {stores.kind} of this hub alone (stores.kind)")
    else:
        yield ok("stores", shared or f"{stores.kind} of this hub alone")


def _browser(settings: Settings) -> Iterator[Finding]:
    """What holds the pages that core/web.screenshot shows; why it is UNAVAILABLE the tools' own check says."""
    browser = find_browser(settings.browser.executable, settings.browser.sandbox)
    if browser.lacking:
        return
    if browser.has_sandbox:
        yield ok("browser", f"{browser.executable}, with its sandbox")
        return
    why = "for root there is none" if settings.browser.sandbox != "off" else "browser.sandbox is off"
    text = f"{browser.executable} shows pages WITHOUT ITS SANDBOX ({why})"
    advice = "Run the hub as another user, or set browser.sandbox to `required`."
    yield warn("browser", text, advice, "core/web.screenshot")


async def _tools(settings: Settings) -> list[Finding]:
    try:
        tools = await configured_tools(settings)
    except ToolFailure as refused:
        return [fail("tools", refused.error.message, "Correct tools.custom or tools.trusted_namespaces.")]
    lacking = [tool for tool in tools if tool.state is ToolState.UNAVAILABLE]
    own = sorted((tool.state_reason, tool.name) for tool in lacking if tool.source != CORE_SOURCE)
    findings = [
        warn("custom tools", reason, "Fix this, or leave these tools out.", *(name for _, name in group))
        for reason, group in groupby(own, key=lambda each: each[0])
    ]
    # A hub is fit without them: each waits for a library or a configuration that only some hubs have.
    waiting = sorted((tool.state_reason, tool.name) for tool in lacking if tool.source == CORE_SOURCE)
    findings += [
        ok("optional", f"not set up: {', '.join(name for _, name in group)}: {reason}")
        for reason, group in groupby(waiting, key=lambda each: each[0])
    ]
    active = sum(tool.state is ToolState.ACTIVE for tool in tools)
    have = f"{active} of {len(tools)} built-in and custom tools have what they need on this machine"
    return [ok("tools", f"{have} (the policy is not considered)"), *findings]
