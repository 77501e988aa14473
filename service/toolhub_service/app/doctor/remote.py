"""Checks what the hub reaches over the network: token issuers (keys and clock), core/db.* databases, shared servers.

Findings name the address and the problem, never the rest of a URL: it may hold a password.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from importlib.util import find_spec

from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.app.wiring.endpoints import make_databases
from toolhub_service.app.wiring.identity import check_credentials
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.guards.secrets import Redactor
from toolhub_service.identity.keys import Document, Fetcher, IssuerKeys
from toolhub_service.identity.token import IssuerTerms
from toolhub_service.settings.document import Settings
from toolhub_service.tools.database.connection import Database
from toolhub_service.tools.database.export import missing_for

_DATABASE_S = 5.0


async def issuer_checks(settings: Settings) -> AsyncIterator[Finding]:
    """A finding for each issuer."""
    if not settings.auth.jwt.issuers:
        return
    try:
        terms = check_credentials(settings)
    except ListenRefused:  # `auth` reports it
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


def server_checks(settings: Settings) -> Iterator[Finding]:
    """Report each configured shared server that answers; one that does not keeps the hub from starting."""
    if settings.stores.redis_url and find_spec("redis"):
        yield ok("redis", "answers")
    if settings.stores.postgres_url and find_spec("psycopg"):
        from toolhub_service.stores.postgres.target import postgres_target

        with suppress(HubFailure):  # no URL of a PostgreSQL
            yield ok("postgres", f"{postgres_target(settings.stores.postgres_url, application='').shown} answers")


def store_checks(settings: Settings) -> Iterator[Finding]:
    """Report where the hub keeps what it stores."""
    stores = settings.stores
    wanted = {
        "stores.redis_url": stores.redis_url,
        "stores.postgres_url": stores.postgres_url,
        "jobs.engine": settings.jobs.engine == "docket",
        "artifacts.bucket_url": settings.artifacts.bucket_url,
    }
    shared = ", ".join(name for name, is_set in wanted.items() if is_set)
    if stores.postgres_url and not stores.redis_url and stores.kind != "postgres":
        yield ok("stores", f"{shared}; keys, approvals and pins: {stores.kind} of this hub alone (stores.kind)")
    else:
        yield ok("stores", shared or f"{stores.kind} of this hub alone")
