"""Tokens of a real issuer over gRPC: calls, expiry, keys that change while calls run, an issuer that is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.hub import RunningHub, request, running_hub, settings_of
from tests.rpc.statuses import failed, failure_of
from tests.servers.issuer import RealIssuer, real_issuer
from toolhub.v1 import error_pb2, registry_service_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.hub import open_hub
from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.serving import reload_keys
from toolhub_service.app.wiring import deps

NOW, READ, WRITE = "core/util.time.now", "core/fs.listDir", "core/fs.writeText"
DENIED = error_pb2.ERROR_KIND_POLICY_DENIED
HUB = "https://hub.example.com"
POLICY = """
extends: none
grants:
  - {principals: ["real:*"], capabilities: ["read:*", "write:*"]}
roles:
  - {principals: ["real:*"], roles: [agent, operator]}
"""
TERMS = {
    "required_scopes": ["toolhub"],
    "roles": {"*": ["agent"], "group:admins": ["operator", "auditor"]},
    "capabilities": {"scope:toolhub": ["read:*"], "group:admins": ["*"]},
}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


class ShiftedClock(deps.SystemClock):
    """The hub's, which a test can put forward."""

    shift_s = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + type(self).shift_s

    def unix_ms(self) -> int:
        return super().unix_ms() + int(type(self).shift_s * 1_000)


@pytest.fixture
async def issuer() -> AsyncIterator[RealIssuer]:
    async with real_issuer() as running:
        yield running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[ShiftedClock]:
    monkeypatch.setattr(deps, "SystemClock", ShiftedClock)
    monkeypatch.setattr(ShiftedClock, "shift_s", 0.0)
    return ShiftedClock


async def problem(hub: RunningHub, token: str) -> tuple[grpc.StatusCode, str, str]:
    """(code, reason, problem) with which a call is refused."""
    failure = await failed(hub.stub.Invoke(request(NOW), metadata=bearer(token)))
    assert token not in failure.message
    return failure.code, failure.reason, failure.metadata.get("problem", "")


@pytest.mark.promise("identity.tokens", "identity.tokens-refused", "identity.keys")
async def test_tokens_of_a_real_issuer_open_the_hub_as_far_as_policy_and_token_both_say(
    issuer: RealIssuer, tmp_path: Path, clock: type[ShiftedClock]
) -> None:
    settings = {"auth": issuer.settings(HUB, **TERMS)}
    refused = grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED"
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        for client in ("robot", "curve", "edwards", "pss"):
            result = await hub.invoke(NOW, metadata=bearer(await issuer.token(client, HUB)))
            (asked, *_) = await hub.events(call_id=result.call_id)
            assert (asked.event.principal, asked.event.attributes["issuer"]) == (f"real:{client}", "real")
        robot, admin = await issuer.token("robot", HUB), await issuer.token("curve", HUB)

        # What the token does not give: a capability, a role; what the policy does not give: the auditor.
        written = {"path": "a.txt", "text": "x"}
        assert (await hub.invoke(WRITE, written, metadata=bearer(robot))).error.kind == DENIED
        assert (await hub.invoke(WRITE, written, metadata=bearer(admin))).ok
        listing = registry_service_pb2.ListSourcesRequest()
        assert (await failed(hub.registry.ListSources(listing, metadata=bearer(robot)))).reason == "ROLE_MISSING"
        await hub.registry.ListSources(listing, metadata=bearer(admin))

        # Beside them keys work as ever, and none can have the name of a principal of the issuer.
        file = Paths(hub.hub.settings).key_file()
        key, forged = file.create("robot"), file.create("real:robot")
        reload_keys(hub.hub, file)
        assert (await problem(hub, key))[1] == "PRINCIPAL_UNKNOWN"
        assert (await problem(hub, forged))[:2] == refused

        assert await problem(hub, await issuer.token("robot", "https://other.example")) == (*refused, "audience")
        assert await problem(hub, f"{robot[:-4]}AAAA") == (*refused, "signature")

        # A session that is open when its token expires ends at its next message.
        brief = await issuer.token("brief", HUB)
        session = hub.stub.InvokeSession(metadata=bearer(brief), timeout=60)
        await session.write(_session_call("a"))
        assert (await session.read()).events
        clock.shift_s += 5
        await session.write(_session_call("b"))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await session.read()
        assert failure_of(ended.value).metadata["problem"] == "expired"
        assert await problem(hub, brief) == (*refused, "expired")

        # The issuer withdraws its keys: a token of the new ones is accepted at once, one of the old ones no longer.
        await issuer.does("revoke")
        new = await issuer.token("robot", HUB)
        both = await asyncio.gather(*(hub.invoke(NOW, metadata=bearer(new)) for _ in range(20)))
        assert all(result.ok for result in both)
        assert await problem(hub, robot) == (*refused, "key")

        # It is away: its keys serve on for the grace, and then nobody is let in.
        await issuer.does("away")
        clock.shift_s = 3_000
        assert (await hub.invoke(NOW, metadata=bearer(new))).ok
        clock.shift_s = 3_700
        assert (await problem(hub, new))[:2] == (grpc.StatusCode.UNAVAILABLE, "ISSUER_UNREACHABLE")
        await issuer.does("back")
        clock.shift_s = 3_800
        assert (await hub.invoke(NOW, metadata=bearer(new))).ok


def _session_call(name: str) -> pb.InvokeSessionRequest:
    call = request(NOW, message=pb.SessionCall)
    call.call_id = name
    return pb.InvokeSessionRequest(calls=[call])


@pytest.mark.promise("identity.keys")
async def test_keys_change_while_calls_run_and_hub_and_issuer_restart(issuer: RealIssuer, tmp_path: Path) -> None:
    settings = {"auth": issuer.settings(HUB)}
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        stop, token, made = asyncio.Event(), await issuer.token("robot", HUB), 0

        async def calls() -> None:
            nonlocal made
            while not stop.is_set():
                result = await hub.invoke(NOW, metadata=bearer(token))
                assert result.ok
                made += 1

        running = [asyncio.create_task(calls()) for _ in range(4)]
        for _ in range(3):
            await issuer.does("rotate")
            token = await issuer.token("robot", HUB)
            assert (await hub.invoke(NOW, metadata=bearer(token))).ok
        stop.set()
        await asyncio.gather(*running)
        assert made >= 4
    await issuer.does("away")
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        code, reason, _ = await problem(hub, token)
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "ISSUER_UNREACHABLE")
        await issuer.does("back")
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        assert (await hub.invoke(NOW, metadata=bearer(token))).ok


async def test_a_hub_that_could_not_check_tokens_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = {"name": "real", "issuer": "http://id.example.com", "audiences": [HUB]}
    plain = {"auth": {"modes": ["jwt"], "jwt": {"issuers": [issuer]}}}
    with pytest.raises(ListenRefused, match="must begin with https"):
        await open_hub(settings_of(tmp_path, plain))
    issuer["issuer"] = "https://id.example.com"
    with pytest.raises(ListenRefused, match="in the clear"):
        await open_hub(settings_of(tmp_path, {**plain, "server": {"listen": "0.0.0.0:0"}}))
    with pytest.raises(ValueError, match=r"jwt\.issuers go together"):
        settings_of(tmp_path, {"auth": {"modes": ["jwt"]}})
    monkeypatch.setattr("toolhub_service.app.wiring.identity.is_installed", lambda: False)
    with pytest.raises(ListenRefused, match="toolhub extras install oidc"):
        await open_hub(settings_of(tmp_path, plain))
