"""Callers' own credentials of sources: given, used for their owner alone, listed without secrets, revoked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from tests.fakes import comfyui_templates
from tests.fakes.comfyui import Op, fake_comfyui
from tests.fakes.mcp_servers.guarded import guarded_server
from tests.fakes.n8n import fake_n8n
from tests.hub import RunningHub, running_hub, settings_of
from tests.rpc.real_servers import write_sources
from tests.rpc.statuses import failed
from tests.unit.adapters.n8n.flows import flow
from toolhub.v1 import credential_service_pb2 as pb
from toolhub.v1 import error_pb2, result_pb2
from toolhub.v1.credential_service_pb2_grpc import CredentialServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.cli.root import toolhub

SHARED, ALICE, BOB = "shared-secret-0123456789", "alice-secret-0123456789", "bob-secret-0123456789"
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: ["mcp:*", "n8n:*", "comfyui:*"]}
roles:
  - {principals: ["*"], roles: [agent]}
  - {principals: [warden], roles: [agent, operator]}
"""
DENIED = error_pb2.ERROR_KIND_PERMISSION_DENIED


class CredentialsHarness:
    """A hub whose callers have API keys, and their clients."""

    def __init__(self, hub: RunningHub, keys: Mapping[str, str]) -> None:
        self.hub = hub
        self.keys = keys

    def who(self, name: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.keys[name]}"),)

    async def call(self, name: str, tool: str, args: Mapping[str, Any] | None = None) -> result_pb2.ToolResult:
        return await self.hub.invoke(tool, args, metadata=self.who(name))

    async def value(self, name: str, tool: str, args: Mapping[str, Any] | None = None) -> Any:
        result = await self.call(name, tool, args)
        assert result.ok, result.error.message
        return json.loads(result.result_json)

    async def ask(self, name: str, rpc: str, **fields: Any) -> Any:
        stub: Any = CredentialServiceStub(self.hub.channel)
        request = getattr(pb, f"{rpc}Request")(**fields)
        return await getattr(stub, rpc)(request, metadata=self.who(name), timeout=60)


@asynccontextmanager
async def credentials_harness(
    home: Path, sources: Mapping[str, Any], *, policy: str = POLICY, **settings: Any
) -> AsyncIterator[CredentialsHarness]:
    write_sources(home, sources)
    chosen = {"auth": {"modes": ["api-key"]}, **settings}
    file = Paths(settings_of(home, chosen)).key_file()
    keys = {name: file.create(name) for name in ("alice", "bob", "carol", "warden")}
    async with running_hub(home, policy=policy, settings=chosen) as hub:
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        yield CredentialsHarness(hub, keys)


def mcp(url: str, **more: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {SHARED}", "X-Team": "blue"}
    return {"kind": "mcp", "url": url, "headers": headers, "trust": "always", **more}


PER_USER = {"auth": {"per_user": {"kind": "header"}}}
USERS = {f"Bearer {SHARED}": "the hub", f"Bearer {ALICE}": "alice", f"Bearer {BOB}": "bob"}


@pytest.mark.promise("credentials.own")
async def test_each_caller_of_an_mcp_server_is_known_to_it_by_a_credential_and_a_session_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        guarded_server(users=USERS) as server,
        credentials_harness(tmp_path, {"shop": mcp(server.url, protocol="2025-11-25", **PER_USER)}) as harness,
    ):
        refused = await harness.call("alice", "shop/whoami")
        assert refused.error.kind == DENIED
        assert "toolhub credentials set shop" in refused.error.message
        assert refused.error.details["command"] == "toolhub credentials set shop"
        before = len(server.calls)
        await harness.ask("alice", "SetCredential", source="shop", value=ALICE)
        await harness.ask("bob", "SetCredential", source="shop", value=f" {BOB}\n")
        answers = await asyncio.gather(*(harness.value(name, "shop/whoami") for name in ("alice", "bob") * 5))
        assert [each["result"] for each in answers] == ["alice", "bob"] * 5
        assert sorted(server.calls[before:]) == ["alice"] * 5 + ["bob"] * 5
        assert all(len(users) == 1 for users in server.sessions.values()), "a session was shared"
        assert {*map(frozenset, server.sessions.values())} == {*map(frozenset, (["the hub"], ["alice"], ["bob"]))}
        own = [headers for headers in server.seen if headers.get("authorization") != f"Bearer {SHARED}"]
        assert all(headers["x-team"] == "blue" for headers in own), "what says nothing of the caller still goes along"

        leaked = await harness.value("alice", "shop/leak")
        assert ALICE not in json.dumps(leaked)
        assert (await harness.call("carol", "shop/whoami")).error.kind == DENIED

        await harness.ask("alice", "SetCredential", source="shop", value="no longer known 123")
        wrong = await harness.call("alice", "shop/whoami")
        assert (wrong.error.kind, wrong.error.details["state"]) == (DENIED, "CREDENTIAL_REFUSED")
        await harness.ask("bob", "RevokeCredential", source="shop")
        assert (await harness.call("bob", "shop/whoami")).error.kind == DENIED

        events = await harness.hub.events()
        kept = json.dumps([str(each) for each in events])
        assert {"CREDENTIAL_SET", "CREDENTIAL_REVOKED"} <= {each.event.type.value for each in events}
    written = b"".join(path.read_bytes() for path in (tmp_path / "hub").rglob("*") if path.is_file())
    printed = "".join(capfd.readouterr())
    for secret in (ALICE, BOB, "no longer known 123"):
        assert secret.encode() not in written, "a secret lies in a file in the clear"
        assert secret not in kept
        assert secret not in printed
    for key in harness.keys.values():
        assert key not in json.dumps(server.seen), "the caller's own credential reached the server"


async def test_a_caller_without_a_credential_is_served_as_the_source_is_configured(tmp_path: Path) -> None:
    entry = mcp("", auth={"per_user": {"kind": "header", "required": False}})
    async with (
        guarded_server(users=USERS) as server,
        credentials_harness(tmp_path, {"shop": entry | {"url": server.url}}) as harness,
    ):
        assert (await harness.value("carol", "shop/whoami"))["result"] == "the hub"
        await harness.ask("carol", "SetCredential", source="shop", value=BOB)
        assert (await harness.value("carol", "shop/whoami"))["result"] == "bob"


@pytest.mark.promise("credentials.own")
async def test_webhooks_of_n8n_are_called_with_the_callers_own_header(tmp_path: Path) -> None:
    guarded = flow("guarded", "lastNode", webhook={"authentication": "headerAuth"})
    guarded["nodes"][0]["credentials"] = {"httpHeaderAuth": {"id": "cred", "name": "x"}}
    async with fake_n8n(workflows=[guarded]) as n8n:
        n8n.world.credentials["cred"] = ("X-Flow-Key", ALICE)
        entry = {
            "kind": "n8n",
            "url": n8n.url,
            "headers": {"X-Flow-Key": SHARED},
            "auth": {"per_user": {"kind": "header", "header": "X-Flow-Key"}},
            "workflows": {"guarded": {"webhook": "guarded"}},
        }
        async with credentials_harness(tmp_path, {"flows": entry}) as harness:
            assert (await harness.call("alice", "flows/guarded", {"a": 1})).error.kind == DENIED
            await harness.ask("alice", "SetCredential", source="flows", value="wrong-0123456789")
            wrong = await harness.call("alice", "flows/guarded", {"a": 1})
            assert (wrong.error.kind, wrong.error.details["state"]) == (DENIED, "CREDENTIAL_REFUSED")
            await harness.ask("alice", "SetCredential", source="flows", value=ALICE)
            answer = json.dumps(await harness.value("alice", "flows/guarded", {"a": 1}))
            assert ALICE not in answer
            assert SHARED not in answer
            assert harness.keys["alice"] not in answer


async def test_operators_see_whose_exist_and_may_revoke_them_and_nobody_else_may(tmp_path: Path) -> None:
    tenants = 'tenants: [{name: "*", principals: [warden]}, {name: acme, principals: [alice]}]\n'
    async with (
        guarded_server(users=USERS) as server,
        credentials_harness(tmp_path, {"shop": mcp(server.url, **PER_USER)}, policy=POLICY + tenants) as harness,
    ):
        given = await harness.ask("alice", "SetCredential", source="shop", value=ALICE)
        assert (given.credential.principal, given.credential.kind) == ("alice", pb.CREDENTIAL_KIND_HEADER)
        await harness.ask("bob", "SetCredential", source="shop", value=BOB)

        mine = await harness.ask("bob", "ListCredentials")
        assert [each.principal for each in mine.credentials] == ["bob"]
        every = await harness.ask("warden", "ListCredentials", everybody=True, page_size=1)
        rest = await harness.ask("warden", "ListCredentials", everybody=True, page_token=every.next_page_token)
        assert [each.principal for each in (*every.credentials, *rest.credentials)] == ["bob", "alice"]
        assert ALICE not in str(every) + str(rest)

        for rpc, fields in (("ListCredentials", {"everybody": True}), ("RevokeCredential", {"principal": "alice"})):
            source = {} if rpc == "ListCredentials" else {"source": "shop"}
            answer = await failed(harness.ask("bob", rpc, **fields, **source))
            assert (answer.code, answer.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
        words = ["credentials", "revoke", "shop", "--principal", "alice", "--address", harness.hub.address]
        removed = await asyncio.to_thread(CliRunner().invoke, toolhub, [*words, "--api-key", harness.keys["warden"]])
        assert removed.exit_code == 0, f"the tenant is found: {removed.output}"
        assert (await harness.call("alice", "shop/whoami")).error.kind == DENIED
        gone = await failed(harness.ask("alice", "RevokeCredential", source="shop"))
        assert (gone.code, gone.reason) == (grpc.StatusCode.NOT_FOUND, "CREDENTIAL_NOT_FOUND")
        unknown = await failed(harness.ask("alice", "SetCredential", source="none", value="x"))
        assert unknown.reason == "CREDENTIAL_NOT_FOUND"
        unfit = await failed(harness.ask("alice", "SetCredential", source="shop", value="line\nbreak"))
        assert unfit.reason == "LOGIN_REFUSED"


@pytest.mark.promise("credentials.own")
async def test_work_of_comfyui_is_sent_followed_and_fetched_with_its_callers_own_credential(tmp_path: Path) -> None:
    templates = str(comfyui_templates.write(tmp_path / "templates"))
    per_user = {"auth": {"per_user": {"kind": "header"}}}
    async with fake_comfyui("0.33.0") as comfy:
        comfy.users = {f"Bearer {SHARED}", f"Bearer {ALICE}"}
        own = {"headers": {"Authorization": f"Bearer {SHARED}"}, "lost_after_s": 0.3, **per_user}
        studio = {"kind": "comfyui", "url": comfy.url, "templates": [templates], **own}
        async with credentials_harness(tmp_path, {"studio": studio}) as harness:

            async def run(name: str, color: int) -> Any:
                job = await harness.hub.submit("studio/blur", {"color": color}, metadata=harness.who(name))
                return (await harness.hub.watched(job.job_id, metadata=harness.who(name)))[-1].result

            without = await run("alice", 1)
            assert without.error.kind == DENIED
            assert without.error.details["command"] == "toolhub credentials set studio"
            await harness.ask("alice", "SetCredential", source="studio", value=ALICE)
            before = len(comfy.asked)
            done = await run("alice", 2)
            assert done.ok, done.error.message
            sent = {asked.op: asked.headers.get("Authorization") for asked in comfy.asked[before:]}
            mine = [op for op, authorization in sent.items() if authorization == f"Bearer {ALICE}"]
            assert {Op.SUBMIT, Op.JOB, Op.VIEW} <= {*mine}
            assert {*sent.values()} <= {f"Bearer {ALICE}", f"Bearer {SHARED}"}
            assert Op.STATS not in mine

            await harness.ask("bob", "SetCredential", source="studio", value=BOB)
            refused = await run("bob", 3)
            assert (refused.error.kind, refused.error.details["state"]) == (DENIED, "CREDENTIAL_REFUSED")
            assert len(comfy.submitted) == 1
            assert all(key not in str([asked.headers for asked in comfy.asked]) for key in harness.keys.values())
