"""Whether a server that is to become a source wants a person's login, and where: asked once, by `toolhub sources add`.

The server gets one handshake without credentials. Its 401 leads to the metadata at its own origin, which names the
authorization server; that one is not contacted, unless it is the server itself.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from toolhub_service.credentials.issuers import named_issuer
from toolhub_service.credentials.secret import OAuthSettings
from toolhub_service.credentials.token_requests import TokenRequests, Unreachable
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.guards.urls import parse_url

PROBE_S: Final = 5.0
_HANDSHAKE: Final[dict[str, Any]] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "tool-hub", "version": "0"},
    },
}


def wanted_login(url: str) -> str:
    """Return the origin of the authorization server (`https://host`) that a login at the server needs; empty: it wants
    none, names none, or does not answer within five seconds."""
    return asyncio.run(_probe_issuer(url))


async def _probe_issuer(url: str) -> str:
    requests = TokenRequests()
    try:
        async with asyncio.timeout(PROBE_S):
            return await _issuer_origin(requests, url)
    except (Unreachable, ToolFailure, TimeoutError):
        return ""  # the hub tells what is wrong with the source when it reads it
    finally:
        await requests.close()


async def _issuer_origin(requests: TokenRequests, url: str) -> str:
    settings = OAuthSettings()
    answer = await requests.ask(settings, url, url, document=_HANDSHAKE)
    if answer.status != 401:
        return ""
    parsed = parse_url((await named_issuer(requests, settings, url, answer.challenge)).issuer)
    return f"{parsed.scheme}://{parsed.authority}"
