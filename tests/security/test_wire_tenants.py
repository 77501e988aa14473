"""Two tenants at one hub: no RPC distinguishes resources of the other tenant from unknown ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from tests.fakes.mcp_servers.scripted import tool
from tests.hub import request
from tests.rpc.principals import WAIT
from tests.rpc.statuses import failure_of
from tests.security.tenants_harness import (
    METHODS,
    NEVER,
    OUTSIDERS,
    POLICY,
    WRITE,
    TenantResources,
    TenantsHarness,
    tenants_hub,
)
from toolhub.v1 import (
    approval_pb2,
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    call_pb2,
    credential_service_pb2,
    event_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_pb2,
    tool_service_pb2,
)
from toolhub_service.app.config_files.key_file import Wanted
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TenantsHarness]:
    async with tenants_hub(tmp_path_factory.mktemp("hub")) as harness:
        yield harness


EVERY: Final = tool_pb2.ToolFilter(states=[tool_pb2.TOOL_STATE_ACTIVE, tool_pb2.TOOL_STATE_QUARANTINED])


def a_tool(name: str) -> tool_pb2.ToolSpec:
    return tool_pb2.ToolSpec(
        name=name, version="1.0.0", kind=tool_pb2.TOOL_KIND_MCP, description="Say.", input_schema_json=b"{}"
    )


def _decide(ids: TenantResources) -> Message:
    return approval_service_pb2.DecideApprovalRequest(approval_id=ids.approval, decision=approval_pb2.DECISION_APPROVE)


def _pin(ids: TenantResources) -> Message:
    return registry_service_pb2.DecidePinRequest(
        source=ids.source, tool=ids.tool, digest=ids.digest, decision=approval_pb2.DECISION_APPROVE
    )


def _session(ids: TenantResources) -> Message:
    call = tool_service_pb2.SessionCall(intent=call_pb2.ToolIntent(tool=ids.tool, args_json=b"{}"), call_id="one")
    return tool_service_pb2.InvokeSessionRequest(calls=[call])


def _submit(ids: TenantResources) -> Message:
    return job_service_pb2.SubmitJobRequest(intent=call_pb2.ToolIntent(tool=ids.tool, args_json=b"{}"))


_C = credential_service_pb2
_A, _R, _J, _G, _T = (
    artifact_service_pb2,
    approval_service_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)
NAMED: Final[Mapping[str, Callable[[TenantResources], Message]]] = {
    "ApprovalService.GetApproval": lambda ids: _R.GetApprovalRequest(approval_id=ids.approval),
    "ApprovalService.GetApproval, revealed": lambda ids: _R.GetApprovalRequest(approval_id=ids.approval, reveal=True),
    "ApprovalService.DecideApproval": _decide,
    "CredentialService.SetCredential": lambda ids: _C.SetCredentialRequest(source=ids.source, value="x"),
    "CredentialService.BeginLogin": lambda ids: _C.BeginLoginRequest(source=ids.source),
    "CredentialService.CompleteLogin": lambda ids: _C.CompleteLoginRequest(login=f"own:{ids.source}:AAAA", code="x"),
    "CredentialService.RevokeCredential": lambda ids: _C.RevokeCredentialRequest(
        source=ids.source, principal=ids.principal, tenant="acme"
    ),
    "ArtifactService.GetArtifact": lambda ids: _A.GetArtifactRequest(artifact_id=ids.artifact),
    "ArtifactService.ReadArtifact": lambda ids: _A.ReadArtifactRequest(artifact_id=ids.artifact),
    "ArtifactService.DeleteArtifact": lambda ids: _A.DeleteArtifactRequest(artifact_id=ids.artifact),
    "ArtifactService.GetUpload": lambda ids: _A.GetUploadRequest(upload_id=ids.upload),
    "ArtifactService.WriteArtifact": lambda ids: _A.WriteArtifactRequest(
        header=_A.ArtifactHeader(upload_id=ids.upload, offset_bytes=4, size_bytes=9)
    ),
    "JobService.GetJob": lambda ids: _J.GetJobRequest(job_id=ids.job),
    "JobService.WatchJob": lambda ids: _J.WatchJobRequest(job_id=ids.job),
    "JobService.WatchJobs": lambda ids: _J.WatchJobsRequest(job_ids=[ids.job]),
    "JobService.CancelJob": lambda ids: _J.CancelJobRequest(job_id=ids.job),
    "JobService.SubmitJob": _submit,
    "JobService.ListJobs": lambda ids: _J.ListJobsRequest(principal=ids.principal),
    "ArtifactService.ListArtifacts": lambda ids: _A.ListArtifactsRequest(principal=ids.principal),
    "ApprovalService.ListApprovals": lambda ids: _R.ListApprovalsRequest(principal=ids.principal),
    "AuditService.ListEvents": lambda ids: audit_service_pb2.ListEventsRequest(
        filter=event_pb2.EventFilter(principal=ids.principal)
    ),
    "AuditService.ListEvents, by tenant": lambda ids: audit_service_pb2.ListEventsRequest(
        filter=event_pb2.EventFilter(tenant="initech" if ids is NEVER else "acme")
    ),
    "RegistryService.RefreshSources": lambda ids: _G.RefreshSourcesRequest(sources=[ids.source]),
    "RegistryService.UnregisterTool": lambda ids: _G.UnregisterToolRequest(name=ids.tool),
    "RegistryService.RegisterTool": lambda ids: _G.RegisterToolRequest(tool=a_tool(ids.tool), upsert=True),
    "RegistryService.RegisterTools": lambda ids: _G.RegisterToolsRequest(tools=[a_tool(ids.tool)]),
    "RegistryService.DecidePin": _pin,
    "RegistryService.ListPins": lambda ids: _G.ListPinsRequest(source=ids.source, tool=ids.tool),
    "ToolService.GetTool": lambda ids: _T.GetToolRequest(name=ids.tool),
    "ToolService.Invoke": lambda ids: request(ids.tool),
    "ToolService.InvokeStream": lambda ids: request(ids.tool, message=_T.InvokeStreamRequest),
    "ToolService.InvokeSession": _session,
    "ToolService.ListTools": lambda ids: _T.ListToolsRequest(filter=tool_pb2.ToolFilter(names=[ids.tool])),
    "ToolService.ExportTools": lambda ids: _T.ExportToolsRequest(
        filter=tool_pb2.ToolFilter(sources=[ids.source]), format=_T.EXPORT_FORMAT_MCP
    ),
}
"""RPCs whose requests name something, by `Service.Rpc, how`."""
WHOLE: Final[Mapping[str, Message]] = {
    "ApprovalService.ListApprovals": _R.ListApprovalsRequest(),
    "ArtifactService.ListArtifacts": _A.ListArtifactsRequest(),
    "AuditService.ListEvents": audit_service_pb2.ListEventsRequest(),
    "CredentialService.ListCredentials": _C.ListCredentialsRequest(everybody=True),
    "JobService.ListJobs": _J.ListJobsRequest(),
    "RegistryService.ListSources": _G.ListSourcesRequest(),
    "RegistryService.RefreshSources": _G.RefreshSourcesRequest(),
    "RegistryService.GetSnapshot": _G.GetSnapshotRequest(),
    "RegistryService.ListPins": _G.ListPinsRequest(),
    "ToolService.ListTools": _T.ListToolsRequest(),
    "ToolService.SearchTools": _T.SearchToolsRequest(query="acme crm echo"),
    "ToolService.ExportTools": _T.ExportToolsRequest(format=_T.EXPORT_FORMAT_PYTHON_STUBS),
    "ToolService.GetServerInfo": _T.GetServerInfoRequest(),
    "AuditService.VerifyAudit": audit_service_pb2.VerifyAuditRequest(),
}
"""RPCs that answer with what there is, asked for all of it."""
FOLLOWED: Final = frozenset(
    {
        "ApprovalService.WatchApprovals",
        "AuditService.TailEvents",
        "JobService.WatchJobs",
        "RegistryService.WatchTools",
        "ToolService.WatchTools",
    }
)
"""RPCs that stream events: see the test of watches."""


async def test_every_rpc_of_the_contract_is_asked_for_what_another_tenant_has() -> None:
    asked = {key.partition(",")[0] for key in NAMED} | WHOLE.keys() | FOLLOWED
    assert asked == METHODS.keys()


def _shown(answer: Any, ids: TenantResources) -> Any:
    """Without what differs from call to call: ids that the hub has just made, and times."""
    if isinstance(answer, tuple):
        return answer[0], ids.blank(answer[1]), answer[2]
    error = getattr(answer, "result", answer)
    for event in getattr(answer, "events", ()):
        error = event.result if event.HasField("result") else error
    if METHODS["JobService.SubmitJob"].output_type.full_name == answer.DESCRIPTOR.full_name:
        error = answer.job.status
    if "error" in error.DESCRIPTOR.fields_by_name:
        message = ids.blank(error.error.message)
        assert "acme" not in message + str(error.error.details), "what is suggested is like the name, and one's own"
        return error.error.kind, re.sub(r"'…'\. .*", "", message)
    return answer


@pytest.mark.promise("tenants.apart")
async def test_no_answer_about_all_there_is_names_anything_of_another_tenant(harness: TenantsHarness) -> None:
    for who in OUTSIDERS:
        for method, message in WHOLE.items():
            answer: Any = await harness.first(who, method, message)
            if method == "AuditService.VerifyAudit":
                assert isinstance(answer, tuple)
                assert (answer[0], answer[2]) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING"), "it counts all"
                continue
            assert isinstance(answer, Message), (who, method, answer)
            assert b"acme" not in answer.SerializeToString(), (who, method)
    totals: Any = await harness.first("globex-boss", "RegistryService.GetSnapshot", _G.GetSnapshotRequest())
    assert sorted(totals.totals.by_source) == ["common", "core", "custom", "globex-crm"]
    assert totals.totals.tools == sum(totals.totals.by_source.values())


@pytest.mark.promise("tenants.apart")
async def test_resources_of_another_tenant_are_answered_like_unknown_ones(harness: TenantsHarness) -> None:
    for who in OUTSIDERS:
        for key, asks in NAMED.items():
            method = key.partition(",")[0]
            foreign = await harness.first(who, method, asks(harness.acme))
            unknown = await harness.first(who, method, asks(NEVER))
            shown = _shown(foreign, harness.acme), _shown(unknown, NEVER)
            assert shown[0] == shown[1], (who, key)
    assert (await harness.by("acme-bot").job(harness.acme.job)).status.state != 0
    assert [call["name"] for call in harness.scripts["acme-crm"].calls] == ["echo"], "nothing of it was called"


async def test_a_tenant_s_own_operators_and_those_of_the_whole_hub_see_it(harness: TenantsHarness) -> None:
    for who in ("acme-boss", "ops"):
        for method in ("JobService.GetJob", "ApprovalService.GetApproval", "ArtifactService.GetArtifact"):
            assert isinstance(await harness.first(who, method, NAMED[method](harness.acme)), Message), (who, method)
        for method in (
            "JobService.ListJobs",
            "ApprovalService.ListApprovals",
            "ArtifactService.ListArtifacts",
            "AuditService.ListEvents",
            "RegistryService.ListSources",
            "RegistryService.ListPins",
            "ToolService.ListTools",
        ):
            answer = await harness.first(who, method, WHOLE[method])
            assert isinstance(answer, Message), (who, method, answer)
            assert b"acme-" in answer.SerializeToString(), (who, method)
    listed: Any = await harness.first("acme-boss", "JobService.ListJobs", _J.ListJobsRequest())
    assert listed.total_size == len(listed.jobs) == 1
    verified: Any = await harness.first("ops", "AuditService.VerifyAudit", audit_service_pb2.VerifyAuditRequest())
    assert verified.events_checked > 0


async def test_shared_resources_are_changed_by_operators_of_the_whole_hub_alone(harness: TenantsHarness) -> None:
    pins = await harness.hub.registry.ListPins(_G.ListPinsRequest(source="common"), **harness.as_("globex-boss"))
    assert pins.total_size == len(pins.pins) > 0
    shared = TenantResources(
        **{**vars(NEVER), "tool": pins.pins[0].tool, "source": "common", "digest": pins.pins[0].digest}
    )
    for method in ("RegistryService.DecidePin", "RegistryService.UnregisterTool", "RegistryService.RegisterTool"):
        refused = await harness.first("globex-boss", method, NAMED[method](shared))
        assert isinstance(refused, tuple), (method, refused)
        assert refused[0] is grpc.StatusCode.PERMISSION_DENIED
        assert "whole hub" in refused[1]
    assert isinstance(await harness.first("ops", "RegistryService.DecidePin", _pin(shared)), Message)
    own = await harness.hub.registry.ListPins(_G.ListPinsRequest(source="globex-crm"), **harness.as_("globex-boss"))
    mine = TenantResources(
        **{**vars(NEVER), "tool": own.pins[0].tool, "source": "globex-crm", "digest": own.pins[0].digest}
    )
    assert isinstance(await harness.first("globex-boss", "RegistryService.DecidePin", _pin(mine)), Message)


async def _messages_until(call: Any, answer: type[Message], mark: bytes) -> list[bytes]:
    """What a stream sends up to the first message that has the mark."""
    seen: list[bytes] = []
    while mark not in (seen[-1] if seen else b""):
        read = await call.read()
        assert read is not grpc.aio.EOF
        seen.append(read)
    call.cancel()
    return seen


async def test_watches_show_nothing_of_another_tenant(harness: TenantsHarness) -> None:
    asks = {
        "ApprovalService.WatchApprovals": (_R.WatchApprovalsRequest(), b"globex-bot"),
        "AuditService.TailEvents": (audit_service_pb2.TailEventsRequest(), b"globex-bot"),
        "JobService.WatchJobs": (_J.WatchJobsRequest(), b"job_"),
        "RegistryService.WatchTools": (_G.WatchToolsRequest(), b"globex-crm/later"),
        "ToolService.WatchTools": (_T.ToolServiceWatchToolsRequest(filter=EVERY), b"globex-crm/later"),
    }
    assert asks.keys() == FOLLOWED
    streams = {method: harness.stream("globex-boss", method, message) for method, (message, _) in asks.items()}
    await asyncio.gather(*(call.initial_metadata() for call, _ in streams.values()))
    jobs: dict[str, str] = {}
    for tenant in ("acme", "globex"):
        harness.scripts[f"{tenant}-crm"].pages[:] = [[*harness.scripts[f"{tenant}-crm"].pages[0], tool("later")]]
        await harness.hub.registry.RefreshSources(
            _G.RefreshSourcesRequest(sources=[f"{tenant}-crm"]), **harness.as_(f"{tenant}-boss")
        )
        bot = harness.by(f"{tenant}-bot")
        await bot.call(WRITE, {"path": "new.txt", "text": tenant})
        jobs[tenant] = (await bot.submit(WAIT, {"text": tenant})).job_id
    for method, (_, mark) in asks.items():
        seen = await _messages_until(*streams[method], mark)
        assert not any(b"acme" in message or jobs["acme"].encode() in message for message in seen), method


async def test_a_policy_that_moves_a_principal_ends_its_streams_and_shows_what_is_there_now(
    harness: TenantsHarness,
) -> None:
    watch, answer = harness.stream("globex-boss", "JobService.WatchJobs", _J.WatchJobsRequest())
    await watch.initial_metadata()
    paths = Paths(harness.hub.hub.settings)
    try:
        paths.policy.write_text(POLICY.replace('principals: ["globex-*"]', 'principals: ["globex-bot"]'))
        assert harness.hub.hub.policy_file.load().applied
        await harness.by("globex-bot").submit(WAIT, {"text": "one more"})
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await _messages_until(watch, answer, b"never")
        assert (ended.value.code(), failure_of(ended.value).reason) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "ROLE_MISSING",
        )
        refused = await harness.first("globex-boss", "ToolService.GetTool", _T.GetToolRequest(name="globex-crm/echo"))
        assert isinstance(refused, tuple)
        assert refused[0] is grpc.StatusCode.NOT_FOUND
    finally:
        paths.policy.write_text(POLICY)
        assert harness.hub.hub.policy_file.load().applied


@pytest.mark.promise("tenants.apart")
async def test_memory_and_learnt_searches_are_visible_to_their_owner_alone(harness: TenantsHarness) -> None:
    bot, secret = harness.by("acme-bot"), "the zorgon ledger of acme"
    kept = await bot.call("core/memory.write", {"text": secret, "tags": ["ledger"]})
    assert kept.ok, kept.error.message
    assert (await bot.call("core/util.hash.sha256Text", {"text": "x"}, purpose=secret)).ok
    learning = harness.hub.hub.searching.learning
    assert learning is not None
    await learning.flush()
    found = {}
    for who in ("acme-bot", "acme-boss", *OUTSIDERS):
        client = harness.by(who)
        remembered = await client.call("core/memory.search", {"query": "zorgon ledger"})
        listed = await client.call("core/memory.list", {})
        tools: Any = await harness.first(who, "ToolService.SearchTools", _T.SearchToolsRequest(query="zorgon"))
        answers = (remembered, listed)
        assert all(answer.ok for answer in answers), (who, answers)
        found[who] = [b"zorgon" in answer.SerializeToString() for answer in answers] + [bool(tools.hits)]
    assert found.pop("acme-bot") == [True] * 3
    assert found == dict.fromkeys(("acme-boss", *OUTSIDERS), [False] * 3)


@pytest.mark.promise("identity.keys-narrow")
async def test_a_narrower_key_leaves_no_tenant_and_one_of_another_tenant_is_no_key(harness: TenantsHarness) -> None:
    file = Paths(harness.hub.hub.settings).key_file()

    async def tried(name: str, **narrowed: Any) -> tuple[str, str]:
        """The result of a call by a new key: its error's rule, or why the key is refused."""
        key = file.create(name, Wanted(**narrowed))
        reload_keys(harness.hub.hub, file)
        try:
            answer = await harness.hub.invoke("core/util.time.now", metadata=(("authorization", f"Bearer {key}"),))
        except grpc.aio.AioRpcError as refused:
            return failure_of(refused).reason, str(failure_of(refused).metadata.get("problem"))
        return ("ok", "") if answer.ok else ("denied", str(answer.error.details["rule_id"]))

    denied = ("denied", "acme-has-no-clock")
    assert await tried("acme-bot", capabilities=frozenset({"read:*"})) == denied
    assert await tried("acme-bot", tenant="acme") == denied
    assert await tried("globex-bot", capabilities=frozenset({"read:*"})) == ("ok", "")
    for name, tenant in (("acme-bot", "globex"), ("nobody", "acme"), ("ops", "acme")):
        assert await tried(name, tenant=tenant) == ("CREDENTIAL_REFUSED", "tenant"), name
