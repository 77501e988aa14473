"""The real issuer of issuer.mjs, as a test uses it: tokens, and what an issuer does while calls run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.missing import give_up
from tests.servers import HERE, Unavailable, node

SECRET = "a secret of the test"


@dataclass(slots=True)
class RealIssuer:
    url: str
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient

    async def token(self, client: str, resource: str, scope: str = "toolhub") -> str:
        """An access token by client credentials (RFC 6749 §4.4), made for the resource (RFC 8707)."""
        form = {"grant_type": "client_credentials", "resource": resource, **({"scope": scope} if scope else {})}
        answer = await self.http.post(f"{self.url}/token", data=form, auth=(client, SECRET))
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["access_token"]
        return token

    async def does(self, line: str) -> None:
        """`rotate`, `revoke`, `away` or `back`; `deny` or `agree`: what the user says to a login; `person NAME`: who it
        is (alice)."""
        assert await self._answer(line) == line

    async def refreshes(self) -> int:
        """How many refresh tokens were used."""
        return int(await self._answer("refreshes"))

    async def _answer(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        return (await self.process.stdout.readline()).decode().strip()

    def settings(self, *audiences: str, **more: Any) -> Mapping[str, Any]:
        """The section `auth` of a hub that knows it as `real`."""
        issuer = {"name": "real", "issuer": self.url, "audiences": list(audiences), **more}
        return {"modes": ["jwt", "api-key"], "jwt": {"issuers": [issuer], "leeway_s": 0}}


@asynccontextmanager
async def real_issuer() -> AsyncIterator[RealIssuer]:
    """Without Node or its package the test is skipped, or fails where nothing may be missing."""
    process = await asyncio.create_subprocess_exec(
        _node(),
        str(HERE / "issuer.mjs"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        async with httpx.AsyncClient(timeout=30.0) as http:
            yield RealIssuer(url, process, http)
    finally:
        process.stdin.close()
        await process.wait()


def _node() -> str:
    if not (HERE / "node_modules" / "oidc-provider").exists():
        give_up("oidc-provider is not installed: run `python -m tests.servers`")
    try:
        return node()
    except Unavailable as missing:
        give_up(str(missing))
