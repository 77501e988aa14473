"""Whether what the hub reaches over the network answers: issuers of tokens (that they publish keys that are accepted,
and have the same time) and the databases of core/db.*."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

from toolhub_service.app.deps import SystemClock
from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.wiring_endpoints import make_databases
from toolhub_service.app.wiring_identity import issuer_terms
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.guards.secrets import Redactor
from toolhub_service.identity.keys import NOT_INSTALLED, Document, Fetcher, IssuerKeys, is_installed
from toolhub_service.identity.token import IssuerTerms
from toolhub_service.settings.document import Settings
from toolhub_service.tools.database.connection import Database
from toolhub_service.tools.database.export import missing_for


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
    """Keeps the time that the issuer's server says it is."""

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
    # Five seconds at least: Date has whole seconds, and the answer took a while.
    if abs(fetch.skew_s) > max(5.0, terms.leeway_s):
        text = f"its clock and this machine's differ by {abs(fetch.skew_s):,.0f} s"
        return warn(name, text, "Set this machine's clock (NTP); auth.jwt.leeway_s allows for less.")
    return ok(name, f"{terms.issuer} publishes {len(found.keys)} keys that are accepted")


# Whether the databases of core/db.* answer, and as what kind of role.

_WAIT_S = 5.0


async def database_checks(settings: Settings) -> AsyncIterator[Finding]:
    """A finding for each configured database."""
    for database in make_databases(settings, Redactor()):
        yield await _database_finding(database)


async def _database_finding(database: Database) -> Finding:
    name = f"database {database.terms.name}"
    if missing := database.missing():
        return warn(name, missing, "Install it; calls on this connection are refused.")
    try:
        tables, more = await database.describe("", asyncio.get_running_loop().time() + _WAIT_S)
    except ToolFailure as failure:
        return warn(name, failure.error.message, "Correct the entry under `databases`, or what it names.")
    if missing := missing_for(database.limits.export):
        return warn(name, missing, "Install it, or set `export` to csv or jsonl: cut results are not kept.")
    count = f"more than {len(tables)}" if more else str(len(tables))
    return ok(name, f"answers; {count} tables, {'writable' if database.terms.may_write else 'read-only'}")
