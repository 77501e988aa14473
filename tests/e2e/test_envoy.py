"""The shipped deploy/envoy.yaml in a real Envoy, before real hubs: what passes, what is refused, and hubs that go."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import httpx
import pytest

from tests.e2e.envoy_proxy import envoy
from tests.fakes.tls import Authority, tls_settings
from tests.hub import CALL_TIMEOUT_S, OPEN_POLICY, RunningHub, request, running_hub
from tests.mcp_server.mcp_hub import ERAS, HeldTool, McpHub, mcp_hub
from tests.overtaken import overtaken
from tests.processes import served
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

ROOT = Path(__file__).parents[2]
INVOKE = "/toolhub.v1.ToolService/Invoke"
ORIGIN = "http://localhost:5173"
WRITE = {"tool": "core/fs.writeText", "args_struct": {"path": "note.txt", "text": "hello"}, "purpose": "a test"}
JSON = {"content-type": "application/json"}

Call = Callable[[Any], Awaitable[Any]]


@asynccontextmanager
async def two_hubs(folder: Path, notice_s: float = 0.0) -> AsyncIterator[tuple[Any, Any]]:
    """Processes, each with its own data."""
    for name in ("first", "second"):
        (folder / name).mkdir(mode=0o700, parents=True)
        (folder / name / "policy.yaml").touch(0o600)
        (folder / name / "policy.yaml").write_text(OPEN_POLICY)
    settings = {"TOOLHUB_SERVER_DRAIN_NOTICE_S": str(notice_s)}
    async with served(folder / "first", environment=settings) as first, served(folder / "second") as second:
        yield first, second


class CallLoad:
    """Some who call without end, one call after the other, and never repeat what failed."""

    def __init__(self, address: str, call: Call, count: int = 8) -> None:
        self.count = count
        self.answered = 0
        self.failures: list[str] = []
        self._news = asyncio.Event()
        self._call = call
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(count)]
        self._tasks = [asyncio.create_task(self._work(channel)) for channel in self._channels]

    async def more(self, count: int) -> None:
        """Until so many more calls were answered."""
        wanted = self.answered + count
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while self.answered < wanted:
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def _work(self, channel: grpc.aio.Channel) -> None:
        while True:
            try:
                await self._call(ToolServiceStub(channel))
                self.answered += 1
            except grpc.aio.AioRpcError as failure:
                self.failures.append(f"{failure.code().name}: {failure.details()}")
            self._news.set()


def invoke(stub: Any) -> Any:
    return stub.Invoke(request("core/util.time.now"), timeout=CALL_TIMEOUT_S)


def invoke_repeatable(stub: Any) -> Any:
    metadata = (("toolhub-repeatable", "true"),)
    return stub.Invoke(request("core/util.time.now"), timeout=CALL_TIMEOUT_S, metadata=metadata)


def list_tools(stub: Any) -> Any:
    return stub.ListTools(pb.ListToolsRequest(page_size=1), timeout=CALL_TIMEOUT_S)


def misspelt(**fields: Any) -> str:
    return json.dumps({"intent": WRITE, "context": {"request_id": "r"}, **fields})


REFUSED = {
    misspelt(modee="INVOKE_MODE_DRY_RUN"): "no field `modee` in toolhub.v1.InvokeRequest",
    misspelt(intent={**WRITE, "idempotencyKye": "k"}): "no field `idempotencyKye` in toolhub.v1.ToolIntent",
    misspelt(context={"budget": {"max_retry": 0}}): "no field `max_retry` in toolhub.v1.CallBudget",
    misspelt(mode={"INVOKE_MODE_DRY_RUN": True}): "stands where the contract has none",
    misspelt(mode="INVOKE_MODE_DRYRUN"): "invalid value",
    misspelt() + "{}": "more than one value",
    misspelt().replace('"', "'"): "not strict JSON",
    misspelt()[:-1] + ",}": "not strict JSON",
    misspelt()[:-1] + ',"mod\\u0065": "INVOKE_MODE_DRY_RUN"}': "no field",
    "[" * 200 + "]" * 200: "nested",
    "": "intent: value is required",
}
"""Bodies that a lenient reader would run as a plain call, and how they are answered."""


@pytest.mark.promise("deploy.envoy")
async def test_json_that_the_contract_does_not_know_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, policy=OPEN_POLICY) as hub,
        envoy(tmp_path, [hub.address]) as proxy,
        httpx.AsyncClient(base_url=f"http://{proxy.address}", headers=JSON, timeout=CALL_TIMEOUT_S) as client,
    ):
        for body, expected in REFUSED.items():
            answer = await client.post(INVOKE, content=body)
            assert answer.status_code == 400, body
            assert expected in answer.text
        for path in (f"{INVOKE}/", "/toolhub.v1.ToolService/Inv%6Fke", "/toolhub.v1.ToolService/Invoked"):
            assert (await client.post(path, content=misspelt())).status_code == 404
        assert (await client.post(f"{INVOKE}?modee=INVOKE_MODE_DRY_RUN", content=misspelt())).status_code == 400
        for other in ("application/grpcx", "application/grpc; charset=utf-8", "text/plain"):
            answer = await client.post(INVOKE, content=misspelt(modee=2), headers={"content-type": other})
            assert answer.status_code == 400
        assert not hub.workspace("r").exists()
        answer = await client.post(INVOKE, content=misspelt(mode="INVOKE_MODE_DRY_RUN"))
        assert answer.json()["plan"]["tool"] == WRITE["tool"]
        assert not (hub.workspace("r") / "note.txt").exists()
        answer = await client.post(INVOKE, content=misspelt(context={"requestId": "r", "labels": {"any": "label"}}))
        assert answer.json()["result"]["ok"]
        assert (hub.workspace("r") / "note.txt").read_text() == "hello"


async def test_pages_of_an_origin_that_is_named_call_by_grpc_web(tmp_path: Path) -> None:
    message = request("core/util.time.now").SerializeToString()
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,x-grpc-web"}
    async with (
        running_hub(tmp_path, policy=OPEN_POLICY) as hub,
        envoy(tmp_path, [hub.address]) as proxy,
        httpx.AsyncClient(base_url=f"http://{proxy.address}", timeout=CALL_TIMEOUT_S) as client,
    ):
        allowed = await client.options(INVOKE, headers={"origin": ORIGIN, **asked})
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        refused = await client.options(INVOKE, headers={"origin": "https://elsewhere.example", **asked})
        assert "access-control-allow-origin" not in refused.headers
        web = {"content-type": "application/grpc-web+proto", "origin": ORIGIN}
        answer = await client.post(INVOKE, content=framed, headers=web)
        size = int.from_bytes(answer.content[1:5], "big")
        assert pb.InvokeResponse.FromString(answer.content[5 : 5 + size]).result.ok
        assert b"grpc-status:0" in answer.content[5 + size :]
        assert "toolhub-reason" in answer.headers["access-control-expose-headers"]


async def test_tls_lines_encrypt_on_both_sides(tmp_path: Path) -> None:
    authority = Authority()
    settings = tls_settings(tmp_path, authority)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    tls = {f"tls/{shipped}": str(tmp_path / own) for shipped, own in FILES.items()}
    tls |= {"sni: toolhub": "sni: localhost", "exact: toolhub": "exact: localhost"}
    credentials = grpc.ssl_channel_credentials(authority.pem)
    async with (
        running_hub(tmp_path, policy=OPEN_POLICY, settings=settings) as hub,
        envoy(tmp_path, [hub.address], tls) as proxy,
        grpc.aio.secure_channel(proxy.address, credentials) as channel,
        httpx.AsyncClient(
            verify=ssl.create_default_context(cadata=authority.pem.decode()), timeout=CALL_TIMEOUT_S
        ) as client,
    ):
        assert (await invoke(ToolServiceStub(channel))).result.ok
        answer = await client.post(
            f"https://{proxy.address}{INVOKE}", json={"intent": {"tool": "core/util.time.now"}}, headers=JSON
        )
        assert answer.json()["result"]["ok"]
        with pytest.raises(httpx.TransportError):
            await client.post(f"http://{proxy.address}{INVOKE}", json={})


FILES = {"envoy.pem": "hub.pem", "envoy.key": "hub.key", "ca.pem": "ca.pem"}


async def test_calls_that_a_leaving_hub_refuses_are_answered_by_another(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with (
        running_hub(first, policy=OPEN_POLICY) as leaving,
        running_hub(second, policy=OPEN_POLICY) as staying,
        envoy(tmp_path, [leaving.address, staying.address]) as proxy,
    ):
        # Its health says SERVING, as in the moment before Envoy asks.
        leaving.hub.server._admission.draining = True
        callers = CallLoad(proxy.address, invoke)
        await callers.more(100)
        while not refused_by(leaving):
            await callers.more(10)
        await callers.close()
        assert not callers.failures


def refused_by(hub: RunningHub) -> bool:
    metrics = hub.hub.observing.metrics.exposition().decode()
    return any('grpc_method="Invoke"' in line and 'grpc_code="UNAVAILABLE"' in line for line in metrics.splitlines())


class WithdrawnHub(NamedTuple):
    was_noticed: bool
    """Whether Envoy knew before the hub refused work."""
    failures: list[str]


@pytest.mark.slow
@pytest.mark.promise("deploy.envoy")
async def test_no_call_fails_while_a_hub_leaves_on_sigterm(tmp_path: Path) -> None:
    async def attempt(timeout_s: float) -> WithdrawnHub:
        notice_s = min(timeout_s, 60.0)  # the longest that the setting takes
        folder = tmp_path / str(timeout_s)
        async with (
            two_hubs(folder, notice_s) as (leaving, staying),
            envoy(folder, [leaving.address, staying.address]) as proxy,
        ):
            callers = CallLoad(proxy.address, invoke)
            await callers.more(100)
            asked = time.monotonic()
            leaving.signal(signal.SIGTERM)
            while leaving.address in await proxy.healthy():
                await callers.more(5)
            was_noticed = time.monotonic() - asked < notice_s
            await leaving.process.wait()
            await callers.more(100)
            await callers.close()
            return WithdrawnHub(was_noticed, callers.failures)

    left = await overtaken(attempt, lambda left: left.was_noticed, first_s=5.0)
    assert not left.failures


@pytest.mark.slow
async def test_a_killed_hub_loses_only_the_calls_that_it_had_and_might_have_run(tmp_path: Path) -> None:
    async with (
        two_hubs(tmp_path) as (killed, staying),
        envoy(tmp_path, [killed.address, staying.address]) as proxy,
    ):
        reads, repeatable, others = (CallLoad(proxy.address, call) for call in (list_tools, invoke_repeatable, invoke))
        everybody = (reads, repeatable, others)
        for callers in everybody:
            await callers.more(50)
        killed.signal(signal.SIGKILL)
        await killed.process.wait()
        for callers in everybody:
            await callers.more(50)
        for callers in everybody:
            await callers.close()
        assert not reads.failures
        assert not repeatable.failures
        assert len(others.failures) <= others.count, "one in flight each"
        assert all(failure.startswith("UNAVAILABLE") for failure in others.failures)


class ProgressEvent:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.event.set()


async def test_mcp_passes_as_it_is_its_streams_at_once_and_a_session_stays_with_its_hub(tmp_path: Path) -> None:
    working = HeldTool()
    async with (
        mcp_hub(tmp_path / "first", tools=[working]) as first,
        mcp_hub(tmp_path / "second", tools=[working]) as second,
        envoy(
            tmp_path,
            [first.grpc.address, second.grpc.address],
            mcp=[url.removeprefix("http://").removesuffix("/mcp") for url in (first.url, second.url)],
        ) as proxy,
    ):
        through = McpHub(first.grpc, f"http://{proxy.address}/mcp")
        for era in ERAS:
            working.begun.clear()
            working.go_on.clear()
            progress = ProgressEvent()

            async with through.client(era) as client, asyncio.timeout(CALL_TIMEOUT_S):
                for _ in range(6):  # in turn to both hubs, but for a session
                    assert not (await client.call_tool("core__util_time_now", {})).is_error
                call = asyncio.create_task(client.call_tool("held__work_on", {}, progress_callback=progress))
                await progress.event.wait()  # while the call runs: nothing waits for its end
                working.go_on.set()
                assert (await call).structured_content == {"done": True}
        calls = [len(await hub.grpc.events(tool="core/util.time.now")) for hub in (first, second)]
        assert min(calls) > 0, calls


@pytest.mark.parametrize("path", ["/login/unknown", "/.well-known/oauth-protected-resource/mcp"])
async def test_pages_beside_the_mcp_endpoint_pass_as_they_are(path: str, tmp_path: Path) -> None:
    async with (
        mcp_hub(tmp_path / "hub") as hub,
        envoy(tmp_path, [hub.grpc.address], mcp=[hub.url.removeprefix("http://").removesuffix("/mcp")]) as proxy,
        httpx.AsyncClient() as browser,
    ):
        direct = await browser.get(hub.url.removesuffix("/mcp") + path)
        proxied = await browser.get(f"http://{proxy.address}{path}")
    assert (proxied.status_code, proxied.text) == (direct.status_code, direct.text)
    assert proxied.headers["content-type"] == direct.headers["content-type"]
