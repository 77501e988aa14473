"""Checks what the hub reaches over the network: token issuers (keys and clock), core/db.* databases, shared servers.

Findings name the address and the problem, never the rest of a URL: it may hold a password.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from email.utils import parsedate_to_datetime
from importlib.util import find_spec

from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.wiring.deps import SystemClock, SystemRandomness
from toolhub_service.app.wiring.endpoints import make_databases
from toolhub_service.app.wiring.identity import issuer_terms
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.guards.secrets import Redactor
from toolhub_service.identity.keys import NOT_INSTALLED, Document, Fetcher, IssuerKeys, is_installed
from toolhub_service.identity.token import IssuerTerms
from toolhub_service.settings.document import Settings
from toolhub_service.tools.database.connection import Database
from toolhub_service.tools.database.export import missing_for

_DATABASE_S = 5.0
_SERVER_S = 3.0
_START_IT = "Start it, or correct its URL, user and password: the hub does not start without it."


async def issuer_checks(settings: Settings) -> AsyncIterator[Finding]:
    """A finding for each issuer."""
    if not settings.auth.jwt.issuers:
        return
    if not is_installed():
        yield fail("issuers", "auth.modes has jwt, and PyJWT is not installed", f"{NOT_INSTALLED}.")
        return
    try:
        terms = issuer_terms(settings)
    except ListenRefused as unfit:
        yield fail("issuers", str(unfit), "Correct it.")
        return
    for each in terms:
        yield await _issuer_finding(each)
    if settings.server.mcp.enabled and not settings.server.mcp.public_url:
        text = "server.mcp.public_url is empty: MCP clients cannot find out who issues tokens"
        yield warn("issuers", text, "Set it to the URL by which clients reach the MCP endpoint, such as https://…/mcp.")


class _Dated(Fetcher):
    """Records the time from the issuer's responses."""

    skew_s = 0.0

    async def get(self, url: str) -> Document:
        document = await super().get(url)
        try:
            self.skew_s = parsedate_to_datetime(document.date).timestamp() - time.time()
        except (TypeError, ValueError):
            self.skew_s = 0.0
        return document


async def _issuer_finding(terms: IssuerTerms) -> Finding:
    name, fetch = f"issuer {terms.name}", _Dated(terms)
    keys = IssuerKeys(terms, fetch, SystemClock())
    try:
        await keys.refresh()
        found = keys.in_force()
    finally:
        await keys.close()
    if found is None:
        advice = "No token of it is accepted until this is mended: correct auth.jwt.issuers, or the way to it."
        return fail(name, keys.problem, advice)
    # At least five seconds: Date has whole seconds, and the response took a while.
    if abs(fetch.skew_s) > max(5.0, terms.leeway_s):
        text = f"its clock and this machine's differ by {abs(fetch.skew_s):,.0f} s"
        return warn(name, text, "Set this machine's clock (NTP); auth.jwt.leeway_s allows for less.")
    return ok(name, f"{terms.issuer} publishes {len(found.keys)} keys that are accepted")


async def database_checks(settings: Settings) -> AsyncIterator[Finding]:
    """Report for each configured database whether it answers, and the kind of its role."""
    for database in make_databases(settings, Redactor()):
        yield await _database_finding(database)


async def _database_finding(database: Database) -> Finding:
    name = f"database {database.terms.name}"
    if missing := database.missing():
        return warn(name, missing, "Install it; calls on this connection are refused.")
    try:
        tables, more = await database.describe("", asyncio.get_running_loop().time() + _DATABASE_S)
    except ToolFailure as failure:
        return warn(name, failure.error.message, "Correct the entry under `databases`, or what it names.")
    if missing := missing_for(database.limits.export):
        return warn(name, missing, "Install it, or set `export` to csv or jsonl: cut results are not kept.")
    count = f"more than {len(tables)}" if more else str(len(tables))
    return ok(name, f"answers; {count} tables, {'writable' if database.terms.may_write else 'read-only'}")


async def server_checks(settings: Settings) -> AsyncIterator[Finding]:
    """Report on each configured shared server whose packages are installed."""
    if settings.stores.redis_url and find_spec("redis"):
        yield await _redis(settings.stores.redis_url)
    if settings.stores.postgres_url and find_spec("psycopg"):
        yield await _postgres(settings.stores.postgres_url)


async def _redis(url: str) -> Finding:
    from toolhub_service.stores.redis.link import RedisLink

    try:
        link = RedisLink(url, SystemRandomness(), patience_s=_SERVER_S)
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

    from toolhub_service.stores.postgres.errors import TROUBLE, reason_of
    from toolhub_service.stores.postgres.target import postgres_target

    try:
        target = postgres_target(url, application="toolhub doctor")
    except HubFailure as wrong:
        return fail("postgres", wrong.message, "Correct it.")
    try:
        async with await AsyncConnection.connect(target.conninfo, connect_timeout=int(_SERVER_S)) as connection:
            await connection.execute("SELECT 1")
    except TROUBLE as trouble:
        return fail("postgres", f"{target.shown}: {reason_of(trouble)}", _START_IT)
    return ok("postgres", f"{target.shown} answers")


def store_checks(settings: Settings) -> Iterator[Finding]:
    """Report packages that the configuration needs and that are not installed."""
    wanted = {
        "stores.redis_url": (settings.stores.redis_url, "redis", "redis"),
        "stores.postgres_url": (settings.stores.postgres_url, "psycopg", "postgres"),
        "jobs.engine": (settings.jobs.engine == "docket", "docket", "docket"),
        "artifacts.bucket_url": (settings.artifacts.bucket_url, "obstore", "s3"),
    }
    missing = [
        fail("stores", f"{name} is set and {package} is not installed", f"toolhub extras install {extra}")
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
