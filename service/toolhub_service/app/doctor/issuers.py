"""Whether the issuers of tokens can be reached, publish keys that are accepted, and have the same time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

from toolhub_service.app.deps import SystemClock
from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.wiring_identity import issuer_terms
from toolhub_service.identity.keys import NOT_INSTALLED, Document, Fetcher, IssuerKeys, is_installed
from toolhub_service.identity.token import IssuerTerms
from toolhub_service.settings.document import Settings


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
        yield await _asked(each)
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


async def _asked(terms: IssuerTerms) -> Finding:
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
    if abs(fetch.skew_s) > max(5.0, terms.leeway_s):
        text = f"its clock and this machine's differ by {abs(fetch.skew_s):,.0f} s"
        return warn(name, text, "Set this machine's clock (NTP); auth.jwt.leeway_s allows for less.")
    return ok(name, f"{terms.issuer} publishes {len(found.keys)} keys that are accepted")
