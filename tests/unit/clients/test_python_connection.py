"""How the Python client finds a hub, proves who calls, waits, and repeats what nothing can have come of."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

from tests.fakes.tls import Authority, tls_settings
from tests.free_port import free_port
from tests.hub import running_hub
from toolhub.v1 import call_pb2, result_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceServicer, add_ToolServiceServicer_to_server
from toolhub_client import (
    Context,
    HubUnavailable,
    NotFound,
    Overloaded,
    PlaintextCredentialWarning,
    Unauthenticated,
    channel,
    connect,
)
from toolhub_client.channel import target
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer

NOW = "core/util.time.now"
PATIENCE_S = 60.0
LOCAL = (("grpc.use_local_subchannel_pool", 1),)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "API_KEY", "CA_FILE", "CERT_FILE", "KEY_FILE", "REQUEST_ID"):
        monkeypatch.delenv(f"TOOLHUB_{name}", raising=False)


@dataclass
class FailingToolService(ToolServiceServicer):
    """Fails as scripted, then answers."""

    failures: list[RpcFailure | grpc.StatusCode]
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)

    async def Invoke(self, request: Any, context: Any) -> pb.InvokeResponse:
        await self._check(context)
        return pb.InvokeResponse(result=result_pb2.ToolResult(ok=True, result_json=request.intent.args_json))

    async def GetTool(self, request: Any, context: Any) -> pb.GetToolResponse:
        await self._check(context)
        return pb.GetToolResponse(tool=tool_pb2.ToolSpec(name=request.name))

    async def _check(self, context: Any) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        if not self.failures:
            return
        failure = self.failures.pop(0)
        if isinstance(failure, RpcFailure):
            await context.abort(failure.code, failure.message, (details_trailer(failure),))
        await context.abort(failure, "broken")

    WatchTools = GetServerInfo = None  # type: ignore[assignment]
    ListTools = SearchTools = ExportTools = InvokeStream = InvokeSession = None  # type: ignore[assignment]


@asynccontextmanager
async def serving(servicer: FailingToolService, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_ToolServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("given", "where", "is_tls"),
    [
        ("", "127.0.0.1:50051", False),
        ("hub.example.com", "hub.example.com:50051", False),
        ("hub.example.com:7000", "hub.example.com:7000", False),
        ("http://hub:7000", "hub:7000", False),
        ("http://hub", "hub:50051", False),
        ("https://hub.example.com", "hub.example.com:443", True),
        ("https://hub.example.com:7000", "hub.example.com:7000", True),
        ("[::1]", "[::1]:50051", False),
        ("[::1]:7000", "[::1]:7000", False),
        ("unix:/run/hub.sock", "unix:/run/hub.sock", False),
        ("dns:///hub.svc:7000", "dns:///hub.svc:7000", False),
    ],
)
def test_address_is_completed_and_https_means_tls(given: str, where: str, is_tls: bool) -> None:
    found = target(given)
    assert (found.address, found.credentials is not None) == (where, is_tls)


@pytest.mark.promise("clients.environment")
def test_missing_parameters_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(Authority().pem)
    monkeypatch.setenv("TOOLHUB_ADDRESS", "hub:7000")
    monkeypatch.setenv("TOOLHUB_API_KEY", "thk_1_secret")
    assert target().credentials is None
    monkeypatch.setenv("TOOLHUB_CA_FILE", str(authority))
    found = target()
    assert (found.address, found.api_key) == ("hub:7000", "thk_1_secret")
    assert found.credentials is not None
    assert "secret" not in repr(found)
    assert target("other", api_key="thk_2").api_key == "thk_2"


def test_partial_and_contradicting_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="both or none"):
        target(cert_file=tmp_path / "client.pem")
    with pytest.raises(ValueError, match="write https://"):
        target("http://hub", ca_file=tmp_path / "ca.pem")
    with pytest.raises(FileNotFoundError):
        target(ca_file=tmp_path / "missing.pem")


@pytest.mark.parametrize(
    ("address", "warns"), [("hub.example.com:7000", True), ("localhost:1", False), ("[::1]:1", False)]
)
@pytest.mark.promise("clients.plaintext-key")
async def test_key_on_its_way_over_plaintext_is_warned_of(address: str, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with connect(address, api_key="thk_1_x"):
            pass
    warnings_shown = [str(each.message) for each in caught if each.category is PlaintextCredentialWarning]
    assert (len(warnings_shown) == 1) is warns
    assert not any("thk_1_x" in text for text in warnings_shown)


async def test_key_is_sent_by_methods_and_by_the_stubs_beside_them(tmp_path: Path) -> None:
    async with running_hub(tmp_path, settings={"auth": {"modes": ["api-key"]}}, policy=POLICY) as running:
        keys = Paths(running.hub.settings).key_file()
        key = keys.create("robot")
        reload_keys(running.hub, keys)
        async with connect(running.address, api_key=key, options=LOCAL) as hub:
            assert (await hub.invoke(NOW)).ok
            assert (await hub.tools.Invoke(pb.InvokeRequest(intent=call_pb2.ToolIntent(tool=NOW)))).result.ok
        async with connect(running.address, options=LOCAL) as nobody:
            with pytest.raises(Unauthenticated) as refused:
                await nobody.invoke(NOW)
    assert refused.value.reason == "CREDENTIAL_MISSING"
    assert running.address in str(refused.value)


POLICY = """
grants:
  - {principals: [robot], capabilities: [read:fs]}
"""


async def test_tls_and_a_certificate_of_ones_own_open_a_hub_that_wants_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_PROBLEM_S", 60.0)
    authority, clients = Authority(), Authority()
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "me.pem", tmp_path / "me.key"
    ca.write_bytes(authority.pem)
    own = clients.sign("robot")
    key.write_bytes(own.key)
    cert.write_bytes(own.certificate)
    async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority, client_ca=clients)) as running:
        address = f"https://localhost:{running.hub.server.port}"
        async with connect(address, ca_file=ca, cert_file=cert, key_file=key, options=LOCAL) as hub:
            assert (await hub.invoke(NOW)).ok
        other = tmp_path / "other.pem"
        other.write_bytes(clients.pem)
        for where, trusted, words in (
            (address, ca, r"probably wants a client certificate \(cert_file"),
            (address, other, "is not trusted: give the CA"),
            (address.replace("localhost", "127.0.0.1"), ca, "for another host name"),
            (address.removeprefix("https://"), "", r"probably wants TLS \(https"),
        ):
            async with connect(where, ca_file=trusted, retry_s=0.5, options=LOCAL) as stranger:
                with pytest.raises(HubUnavailable, match=words):
                    await stranger.invoke(NOW)
    async with (
        running_hub(tmp_path / "plain") as running,
        connect(f"https://{running.address}", ca_file=ca, retry_s=0.5, options=LOCAL) as hub,
    ):
        with pytest.raises(HubUnavailable, match="does not use TLS"):
            await hub.invoke(NOW)


async def test_an_unreachable_hub_is_reported_with_its_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with connect(address, retry_s=0.2, options=LOCAL) as hub:
        with pytest.raises(HubUnavailable, match="Is it running") as away:
            await hub.invoke(NOW)
    assert address in str(away.value)


async def test_call_waits_for_a_hub_that_is_still_starting() -> None:
    servicer, port = FailingToolService([]), free_port()
    async with connect(f"127.0.0.1:{port}", retry_s=PATIENCE_S, options=LOCAL) as hub:
        calling = asyncio.create_task(hub.invoke("echo", {"n": 1}))
        await asyncio.sleep(0)
        async with serving(servicer, f"127.0.0.1:{port}"):
            assert (await calling).unwrap() == {"n": 1}


OVERLOADED = RpcFailure(Reason.OVERLOADED, "Full.", retry_after_s=0.01)
DRAINING = RpcFailure(Reason.DRAINING, "Leaving.", retry_after_s=0.01)


@pytest.mark.parametrize("failure", [OVERLOADED, DRAINING])
@pytest.mark.promise("clients.one-retry")
async def test_a_call_that_the_hub_refused_unread_is_sent_again(failure: RpcFailure) -> None:
    servicer = FailingToolService([failure, failure])
    async with serving(servicer) as address, connect(address, retry_s=PATIENCE_S, options=LOCAL) as hub:
        assert (await hub.invoke("echo", {"n": 1})).unwrap() == {"n": 1}
    assert len(servicer.metadata) == 3


async def test_a_function_is_asked_for_the_key_before_each_rpc() -> None:
    servicer, keys = FailingToolService([]), ["first", "second"]
    async with serving(servicer) as address, connect(address, api_key=lambda: keys.pop(0)) as hub:
        await hub.get_tool(NOW)
        await hub.get_tool(NOW)
    assert [asked["authorization"] for asked in servicer.metadata] == ["Bearer first", "Bearer second"]


@pytest.mark.promise("clients.one-retry")
async def test_call_that_broke_is_repeated_only_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    servicer = FailingToolService([grpc.StatusCode.UNAVAILABLE])
    async with serving(servicer) as address:
        async with connect(address, retry_s=PATIENCE_S, options=LOCAL) as hub:
            with pytest.raises(HubUnavailable, match="broken"):
                await hub.invoke("echo")
            servicer.failures.append(grpc.StatusCode.UNAVAILABLE)
            assert (await hub.invoke("echo", idempotency_key="once")).ok
            servicer.failures.append(grpc.StatusCode.UNAVAILABLE)
            assert (await hub.get_tool("echo")).name == "echo", "reading is repeated"
        servicer.failures.append(grpc.StatusCode.UNAVAILABLE)
        async with connect(address, retry_s=PATIENCE_S, automatic_keys=True, options=LOCAL) as hub:
            assert (await hub.invoke("echo")).ok
    assert len(servicer.metadata) == 7


async def test_a_call_is_not_repeated_where_that_cannot_help() -> None:
    servicer = FailingToolService([RpcFailure(Reason.TOOL_NOT_FOUND, "There is no such tool.")])
    async with serving(servicer) as address, connect(address, retry_s=PATIENCE_S, options=LOCAL) as hub:
        with pytest.raises(NotFound, match="There is no such tool"):
            await hub.get_tool("echo")
    assert len(servicer.metadata) == 1


async def test_patience_of_nothing_asks_once() -> None:
    servicer = FailingToolService([OVERLOADED])
    async with serving(servicer) as address, connect(address, retry_s=0, options=LOCAL) as hub:
        with pytest.raises(Overloaded) as full:
            await hub.invoke("echo")
    assert full.value.reason == Reason.OVERLOADED.name
    assert full.value.retry_after_s == 0.01


@pytest.mark.promise("clients.one-retry")
async def test_sixty_four_calls_at_once_all_find_their_place_in_a_small_hub(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, settings={"server": {"max_in_flight": 8}}) as running,
        connect(running.address, retry_s=PATIENCE_S, options=LOCAL) as hub,
    ):
        answers = await asyncio.gather(*(hub.invoke(NOW) for _ in range(64)))
    assert all(answer.ok for answer in answers)


async def test_version_and_trace_go_along_with_each_call() -> None:
    servicer, tracer = FailingToolService([]), TracerProvider().get_tracer("a test")
    async with serving(servicer) as address, connect(address, options=LOCAL) as hub:
        with tracer.start_as_current_span("agent") as span:
            await hub.invoke("echo")
    sent = servicer.metadata[0]
    assert str(sent["user-agent"]).startswith("toolhub-python/")
    assert f"{span.get_span_context().trace_id:032x}" in str(sent["traceparent"])


@pytest.mark.promise("workspace.shared-by-a-client")
async def test_calls_of_one_client_share_a_workspace_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_hub(tmp_path) as running:
        async with connect(running.address, options=LOCAL) as hub:
            assert hub.context.request_id.startswith("req_")
            await hub.invoke("core/fs.writeText", {"path": "a.txt", "text": "hi"}, purpose="a test")
            assert (await hub.invoke("core/fs.readText", {"path": "a.txt"})).unwrap()["text"] == "hi"
            for_a_task = await hub.invoke("core/fs.readText", {"path": "a.txt"}, context=Context(task_id="t1"))
            assert for_a_task.ok, "a context that names no request is of the client's"
            elsewhere = await hub.invoke("core/fs.readText", {"path": "a.txt"}, context=Context(request_id="other"))
            assert not elsewhere.ok
        monkeypatch.setenv("TOOLHUB_REQUEST_ID", "other")
        async with connect(running.address, options=LOCAL) as other:
            assert other.context.request_id == "other"
            assert not (await other.invoke("core/fs.readText", {"path": "a.txt"})).ok


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("dry_run", "call Hub.dry_run"),
        ("idempotancy_key", "did you mean 'idempotency_key'"),
        ("timeout_s", "write timeout=…, in seconds"),
        ("nonsense", "known: purpose, idempotency_key"),
    ],
)
async def test_option_that_there_is_not_is_refused_and_nothing_is_called(
    tmp_path: Path, option: str, advice: str
) -> None:
    wrong: Any = {option: True}
    async with running_hub(tmp_path) as running, connect(running.address) as hub:
        for call in (hub.invoke, hub.dry_run, hub.submit_job):
            with pytest.raises(TypeError, match=re.escape(advice)):
                await call("core/fs.writeText", {"path": "a.txt", "text": "hi"}, purpose="test", **wrong)
        with pytest.raises(TypeError, match=re.escape(advice)):
            await anext(aiter(hub.invoke_stream("core/fs.writeText", {"path": "a.txt", "text": "hi"}, **wrong)))
        async with hub.session() as session:
            with pytest.raises(TypeError, match=re.escape(advice)):
                await session.invoke("core/fs.writeText", {"path": "a.txt", "text": "hi"}, **wrong)
        assert (await hub.invoke("core/fs.readText", {"path": "a.txt"})).error is not None


async def test_connection_with_an_option_that_there_is_not_is_refused() -> None:
    wrong: Any = {"apikey": "thk_x"}
    with pytest.raises(TypeError, match="did you mean 'api_key'"):
        async with connect("127.0.0.1:1", **wrong):
            raise AssertionError
