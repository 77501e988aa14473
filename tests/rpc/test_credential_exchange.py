"""Callers' own tokens are exchanged where the source is configured so, and go nowhere else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.mcp_servers.guarded import guarded_server
from tests.fakes.n8n import fake_n8n
from tests.hub import running_hub
from tests.rpc.real_servers import write_sources
from tests.servers.issuer import real_issuer
from tests.unit.adapters.n8n.flows import FLOWS
from toolhub.v1 import error_pb2

HUB = "https://hub.example.com"
POLICY = """
extends: none
grants:
  - {principals: ["real:*"], capabilities: ["mcp:*", "n8n:*"]}
roles:
  - {principals: ["real:*"], roles: [agent]}
"""


@dataclass
class ExchangeEndpoint:
    """A token endpoint that gives each subject token one of its own (RFC 8693 §2)."""

    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    refuses: bool = False

    async def answer(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        if request.headers["authorization"] != f"Basic {base64.b64encode(b'hub:secret-of-the-test').decode()}":
            return web.json_response({"error": "invalid_client"}, status=401)
        if self.refuses:
            return web.json_response({"error": "invalid_target", "error_description": "not for you"}, status=400)
        return web.json_response(
            {"access_token": exchanged(form["subject_token"]), "token_type": "Bearer", "expires_in": 300}
        )


def exchanged(token: str) -> str:
    return "exchanged-" + hashlib.sha256(token.encode()).hexdigest()


def kept_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@asynccontextmanager
async def token_endpoint() -> AsyncIterator[ExchangeEndpoint]:
    made = ExchangeEndpoint()
    app = web.Application()
    app.router.add_post("/token", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    try:
        yield made
    finally:
        await runner.cleanup()


@pytest.mark.promise("credentials.own")
async def test_a_callers_token_is_exchanged_once_for_each_source_and_reaches_no_source_itself(tmp_path: Path) -> None:
    async with (
        real_issuer() as issuer,
        token_endpoint() as endpoint,
        guarded_server(users={"Bearer shared-secret-0123456789": "the hub"}) as server,
        guarded_server(users={"Bearer shared-secret-0123456789": "the hub"}) as plain,
        fake_n8n(workflows=FLOWS) as n8n,
    ):
        tokens = {name: await issuer.token(name, HUB) for name in ("robot", "curve")}
        server.users |= {f"Bearer {exchanged(token)}": name for name, token in tokens.items()}
        auth = {
            "kind": "exchange",
            "token_url": endpoint.url,
            "client_id": "hub",
            "client_secret": "secret-of-the-test",
            "scopes": ["read"],
        }
        shared = {"headers": {"Authorization": "Bearer shared-secret-0123456789"}, "trust": "always"}
        sources: dict[str, Any] = {
            "shop": {"kind": "mcp", "url": server.url, **shared, "auth": {"per_user": auth}},
            "plain": {"kind": "mcp", "url": plain.url, **shared},
            "flows": {"kind": "n8n", "url": n8n.url, "workflows": {"echo": {"webhook": "echo"}}},
        }
        write_sources(tmp_path, sources)
        async with running_hub(tmp_path, policy=POLICY, settings={"auth": issuer.settings(HUB)}) as hub:
            assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=60)

            async def call(name: str, tool: str) -> Any:
                return await hub.invoke(tool, {}, metadata=(("authorization", f"Bearer {tokens[name]}"),))

            answers = await asyncio.gather(*(call(name, "shop/whoami") for name in ("robot", "curve") * 10))
            assert all(each.ok for each in answers), answers[0].error.message
            assert [json.loads(each.result_json)["result"] for each in answers] == ["robot", "curve"] * 10
            assert len(endpoint.asked) == 2, "one exchange a token"
            assert {form["subject_token"] for form in endpoint.asked} == {*tokens.values()}
            assert {form["resource"] for form in endpoint.asked} == {server.url}
            assert {form["scope"] for form in endpoint.asked} == {"read"}
            assert all(len(users) == 1 for users in server.sessions.values())

            for tool in ("plain/whoami", "flows/echo"):
                answer = await call("robot", tool)
                assert answer.ok, answer.error.message
            sent = json.dumps([server.seen, plain.seen])
            runs = "".join(repr(each) + repr(getattr(each, "__dict__", "")) for each in n8n.world.book)
            assert "x-idempotency-key" in runs, "what n8n was sent is in what is searched"
            kept = kept_in(tmp_path)
            for token in tokens.values():
                assert token not in sent
                assert token not in runs
                assert token.encode() not in kept

            job = await hub.submit("shop/whoami", {}, metadata=(("authorization", f"Bearer {tokens['robot']}"),))
            ended = await hub.watched(job.job_id, metadata=(("authorization", f"Bearer {tokens['robot']}"),))
            assert ended[-1].result.error.details["state"] == "NO_TOKEN"

            endpoint.refuses = True
            tokens["robot"] = await issuer.token("robot", HUB)
            refused = await call("robot", "shop/whoami")
            assert refused.error.kind == error_pb2.ERROR_KIND_PERMISSION_DENIED
            assert refused.error.details["state"] == "EXCHANGE_REFUSED"
            assert tokens["robot"] not in refused.error.message
