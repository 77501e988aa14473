"""Who may do what, attacked over the wire: tool names, arguments, plans, identities, roles, pages."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.fakes.keyed_hub import POLICY, KeyedHub, keyed_hub, kind, status, words_of
from tests.hub import CALL_TIMEOUT_S, RunningHub, request
from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    credential_service_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.runtime import route

GRANTED_S = 1.0
"""A stream that may be read, and has no events, is read for so long."""


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[KeyedHub]:
    async with keyed_hub(tmp_path) as made:
        yield made


# Names and arguments


@pytest.mark.parametrize(
    "name",
    [
        *("CORE/fs.writeText", "core/fs.writetext", "core/fs.writeText ", " core/fs.writeText"),
        *("core/fs.writeText\u200b", "core//fs.writeText", "core/./fs.writeText", "core/x/../fs.writeText"),
        *(
            "ｃｏｒｅ/fs.writeText",
            "соre/fs.writeText",
            "core/fs%2ewriteText",
            "core\\fs.writeText",
        ),
    ],
)
async def test_no_other_spelling_of_a_name_passes_a_rule_about_it(keyed: KeyedHub, name: str) -> None:
    assert kind(await keyed.invoke("bob", "core/fs.writeText", {"path": "a", "text": "b"})) == "POLICY_DENIED"
    assert kind(await keyed.invoke("bob", name, {"path": "a", "text": "b"})) == "TOOL_NOT_FOUND"


@pytest.mark.parametrize("name", ["core/fs.writeText\0", "core/fs.writeText\n", "core/fs.write\u202eText"])
async def test_a_name_that_is_not_one_line_is_refused_by_the_contract(keyed: KeyedHub, name: str) -> None:
    code, details = await status(keyed.invoke("bob", name, {"path": "a", "text": "b"}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "intent.tool: must be one line" in details


@pytest.mark.promise("policy.one-spelling")
@pytest.mark.parametrize(
    "args",
    [
        b'{"path":"ok.txt","path":"secrets/a"}',
        b'{"path":"secrets/a","path":"ok.txt"}',
        b'{"path":"ok.txt","pa\\u0074h":"secrets/a"}',
        b'\xef\xbb\xbf{"path":"secrets/a"}',
        b'{"path":"./secrets/a"}',
        b'{"path":"secrets//a"}',
        b'{"path":"x/../secrets/a"}',
        b'{"path":"secrets\\/a"}',
        b'{"path":"s\\u0065crets/a"}',
    ],
)
async def test_no_other_spelling_of_an_argument_passes_a_rule_about_it(keyed: KeyedHub, args: bytes) -> None:
    written = await keyed.invoke("alice", "core/fs.writeText", {"path": "secrets/a", "text": "c4nary"}, request_id="r")
    assert written.ok
    result = await keyed.invoke("alice", "core/fs.readText", args_json=args, request_id="r")
    assert not result.ok
    assert b"c4nary" not in result.SerializeToString()
    assert kind(result) in ("POLICY_DENIED", "INVALID_INPUT")


async def test_a_call_with_both_kinds_of_arguments_has_the_last_only(keyed: KeyedHub) -> None:
    asked = request("core/fs.readText", args_json=b'{"path":"ok"}')
    asked.intent.args_struct.update({"path": "secrets/a"})
    answer = await keyed.hub.stub.Invoke(asked, metadata=keyed.of("alice"), timeout=CALL_TIMEOUT_S)
    assert kind(answer.result) == "POLICY_DENIED"


# Plans


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_a_plan_is_good_for_its_caller_tool_and_arguments_alone(keyed: KeyedHub) -> None:
    for name in ("alice", "bob"):
        (folder := keyed.hub.workspace("r", name)).mkdir(parents=True)
        (folder / "a").write_text("a")
        (folder / "b").write_text("b")
    args = {"path": "a", "confirm": True}
    digest = (await keyed.plan("alice", "core/fs.deletePath", args, request_id="r")).plan_digest
    assert digest
    other = (await keyed.plan("alice", "core/fs.readText", {"path": "a"}, request_id="r")).plan_digest
    for name, arguments, sent in (
        ("bob", args, digest),
        ("alice", args | {"path": "b"}, digest),
        ("alice", args | {"recursive": True}, digest),
        ("alice", args, other),
        ("alice", args, ""),
        ("alice", args, digest[:-1] + ("A" if digest[-1] != "A" else "B")),
        ("alice", args, digest.replace(digest.split(".")[1], str(10**13 * 9), 1)),
        ("alice", args, digest + "."),
        ("alice", args, "v1..."),
    ):
        result = await keyed.invoke(name, "core/fs.deletePath", arguments, plan_digest=sent, request_id="r")
        assert kind(result) == "PLAN_REQUIRED", (name, arguments, sent)
    assert keyed.hub.workspace("r", "alice").joinpath("a").exists()
    assert (await keyed.invoke("alice", "core/fs.deletePath", args, plan_digest=digest, request_id="r")).ok
    assert keyed.hub.workspace("r", "bob").joinpath("a").exists()


async def test_a_plan_is_void_under_another_policy(keyed: KeyedHub) -> None:
    (folder := keyed.hub.workspace("r", "alice")).mkdir(parents=True)
    (folder / "a").write_text("a")
    args = {"path": "a", "confirm": True}
    digest = (await keyed.plan("alice", "core/fs.deletePath", args, request_id="r")).plan_digest
    file = Paths(keyed.hub.hub.settings).policy
    file.write_text(POLICY + "impersonate: [ops]\n")
    assert keyed.hub.hub.policy_file.load().applied
    result = await keyed.invoke("alice", "core/fs.deletePath", args, plan_digest=digest, request_id="r")
    assert kind(result) == "PLAN_REQUIRED"
    assert (folder / "a").exists()


# Identity


@pytest.mark.promise("identity.no-impersonation")
async def test_no_principal_acts_for_another(keyed: KeyedHub) -> None:
    for named in ({"agent_id": "alice"}, {"user_id": "alice"}, {"agent_id": "bob", "user_id": "alice"}):
        result = await keyed.invoke("bob", "core/util.time.now", {}, **named)
        assert kind(result) == "PERMISSION_DENIED", named
    (settled,) = [chained.event for chained in await keyed.hub.events() if chained.event.outcome][:1]
    assert settled.principal == "bob"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer "),),
        (("authorization", "Basic YWxpY2U6"),),
        (("authorization", "Bearer thk_00000000_" + "a" * 43),),
        (("x-api-key", "thk_"),),
        (("x-api-key", "a" * 20_000),),
        (("authorization-bin", b"alice"),),
        (("x-principal", "alice"), ("x-forwarded-user", "alice")),
    ],
)
async def test_no_credential_but_a_key_lets_anybody_in(keyed: KeyedHub, metadata: Any) -> None:
    for call in (
        keyed.hub.stub.Invoke(request("core/util.time.now"), metadata=metadata),
        keyed.hub.stub.ListTools(pb.ListToolsRequest(), metadata=metadata),
        keyed.hub.audit.VerifyAudit(audit_service_pb2.VerifyAuditRequest(), metadata=metadata),
        keyed.hub.registry.GetSnapshot(registry_service_pb2.GetSnapshotRequest(), metadata=metadata),
    ):
        code, message = await status(call)
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "toolhub keys create" in message or "unknown or was revoked" in message, "what to do is said, unredacted"
    assert await keyed.hub.events() == []


@pytest.mark.parametrize("sent", ["Basic bG9jYWw6", "Bearer", "thk_0a1b2c3d_" + "a" * 43, "Negotiate x", "bearer  x"])
async def test_a_credential_that_was_sent_is_checked_even_where_none_is_needed(hub: RunningHub, sent: str) -> None:
    assert (await hub.invoke("core/util.time.now")).ok
    code, message = await status(hub.stub.Invoke(request("core/util.time.now"), metadata=(("authorization", sent),)))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert sent not in message or sent == "Bearer"


async def test_a_wrong_name_is_compared_with_few_even_among_thousands(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def close(word: str, names: list[str], **options: Any) -> list[str]:
        compared.extend(names)
        return get_close_matches(word, names, **options)

    monkeypatch.setattr(route, "get_close_matches", close)
    catalog = hub.hub.toolbox.catalog
    known = catalog.get("core/util.time.now")
    assert known is not None
    specs = [replace(known, name=f"mcp/file{number}.readWriteList", source="x") for number in range(5_000)]
    assert not catalog.register_all(specs)
    result = await hub.invoke("mcp/file12.readWriteLisst")
    assert len(compared) <= 100
    assert "mcp/file12.readWriteList" in result.error.message


async def test_a_key_with_one_other_letter_anywhere_is_refused(keyed: KeyedHub) -> None:
    key = keyed.keys["alice"]
    for at in range(4, len(key), 5):
        forged = key[:at] + ("x" if key[at] != "x" else "y") + key[at + 1 :]
        code, message = await status(keyed.hub.stub.ListTools(pb.ListToolsRequest(), metadata=(("x-api-key", forged),)))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert forged not in message
    for forged in (key.upper(), key + "x", key[:-1], key.replace("_", "-")):
        code, _ = await status(keyed.hub.stub.ListTools(pb.ListToolsRequest(), metadata=(("x-api-key", forged),)))
        assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.promise("identity.roles")
async def test_roles_part_agents_operators_and_auditors(keyed: KeyedHub) -> None:
    asks: dict[str, Callable[[str], Any]] = {
        "agent": lambda who: keyed.hub.stub.ListTools(pb.ListToolsRequest(), metadata=keyed.of(who)),
        "auditor": lambda who: keyed.hub.audit.ListEvents(
            audit_service_pb2.ListEventsRequest(), metadata=keyed.of(who)
        ),
        "operator": lambda who: keyed.hub.registry.UnregisterTool(
            registry_service_pb2.UnregisterToolRequest(name="core/fs.stat"), metadata=keyed.of(who)
        ),
    }
    may = {"alice": {"agent", "auditor"}, "bob": {"agent"}, "ops": {"operator"}}
    for who, roles in may.items():
        for role, ask in asks.items():
            message = await words_of(ask(who))
            assert ("lacks the role" in message) == (role not in roles), (who, role, message)
    assert keyed.hub.hub.toolbox.catalog.get("core/fs.stat") is not None, "not even an operator removes a built-in tool"


async def test_every_rpc_of_long_work_and_of_credentials_asks_for_a_credential_and_a_role(keyed: KeyedHub) -> None:
    """Read off the contract, so that an RPC that is added tomorrow is asked about, too."""
    agent = {"JobService", "ArtifactService", "CredentialService", "ListApprovals", "GetApproval", "WatchApprovals"}
    operator = {"GetJob", "ListJobs", "WatchJob", "WatchJobs", "CancelJob", "ListCredentials", "RevokeCredential"}
    for service in (job_service_pb2, approval_service_pb2, artifact_service_pb2, credential_service_pb2):
        (described,) = service.DESCRIPTOR.services_by_name.values()
        for method in described.methods:
            path = f"/{described.full_name}/{method.name}"
            assert (await _code(keyed, path, ())) is grpc.StatusCode.UNAUTHENTICATED, path
            for who, may in (("bob", agent), ("ops", operator)):
                is_granted = bool(may & {described.name, method.name})
                code = await _code(keyed, path, keyed.of(who), GRANTED_S if is_granted else CALL_TIMEOUT_S)
                assert (code is grpc.StatusCode.PERMISSION_DENIED) != is_granted, (who, path)


async def _code(keyed: KeyedHub, path: str, metadata: Any, within_s: float = CALL_TIMEOUT_S) -> grpc.StatusCode:
    """What an empty request is answered with. Streams are read for one message at most."""
    # On the wire the same as a stream of one, for which grpc.aio reports INTERNAL where the answer overtakes its write.
    rpc: Any = keyed.hub.channel.unary_stream(path)
    call = rpc(b"", metadata=metadata, timeout=within_s)
    try:
        await call.read()
    except grpc.aio.AioRpcError as refused:
        return refused.code()
    finally:
        call.cancel()
    return grpc.StatusCode.OK


# Pages


def forged_tokens() -> list[str]:
    texts = ["[1e999,1,1,1]", '[1,"x","y","z"]', "{}", "null", "[" * 400, "[-1,1]", '[1,["x"],{},null]', '"a"']
    return [base64.urlsafe_b64encode(text.encode()).decode() for text in texts] + [
        "%",
        "é",
        "=",
        "a" * 1_024,
        "a" * 9_999,
    ]


@pytest.mark.parametrize("token", forged_tokens())
async def test_a_forged_page_token_is_refused_with_a_message(keyed: KeyedHub, token: str) -> None:
    for ask in (
        keyed.hub.stub.ListTools(pb.ListToolsRequest(page_token=token), metadata=keyed.of("alice")),
        keyed.hub.stub.SearchTools(pb.SearchToolsRequest(query="file", page_token=token), metadata=keyed.of("alice")),
        keyed.hub.audit.ListEvents(audit_service_pb2.ListEventsRequest(page_token=token), metadata=keyed.of("alice")),
    ):
        assert (await status(ask))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_page_token_of_another_caller_or_question_is_refused(keyed: KeyedHub) -> None:
    first = await keyed.hub.stub.ListTools(pb.ListToolsRequest(page_size=2), metadata=keyed.of("alice"))
    assert first.next_page_token
    stolen = pb.ListToolsRequest(page_size=2, page_token=first.next_page_token)
    assert (await status(keyed.hub.stub.ListTools(stolen, metadata=keyed.of("bob"))))[0] is (
        grpc.StatusCode.INVALID_ARGUMENT
    )
    for ask in (
        pb.ListToolsRequest(page_size=2, page_token=first.next_page_token, filter=tool_pb2.ToolFilter(tags=["http"])),
        pb.SearchToolsRequest(query="x", page_token=first.next_page_token),
    ):
        rpc = keyed.hub.stub.ListTools if isinstance(ask, pb.ListToolsRequest) else keyed.hub.stub.SearchTools
        assert (await status(rpc(ask, metadata=keyed.of("alice"))))[0] is grpc.StatusCode.INVALID_ARGUMENT
