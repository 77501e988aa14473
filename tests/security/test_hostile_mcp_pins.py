"""MCP servers that change what was approved: noticed, quarantined, shown, decided, and in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from tests.security.hostile_harness import ACTIVE, QUARANTINED, READY, HostileHarness, assert_shown, hostile_hub
from toolhub.v1 import approval_pb2, pin_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.domain.event import EventType

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRANSPORTS: Mapping[str, Mapping[str, Any]] = {
    "pipe": {"over": "stdio", "generation": "modern"},
    "web": {"over": "http", "generation": "legacy"},
    "new": {"over": "http", "generation": "modern"},
}
NOTICED_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostileHarness]:
    sources = {
        f"{transport}-{part}": {"hostile": ("calls",), **terms}
        for transport, terms in TRANSPORTS.items()
        for part in ("changed", "schema", "renamed", "added", "shadow", "removed", "told", "storm")
    }
    async with hostile_hub(tmp_path_factory.mktemp("pins"), sources) as harness:
        yield harness


async def become(harness: HostileHarness, source: str, *words: str) -> None:
    """The server is another from now on, and has been read."""
    assert (await harness.call(f"{source}/become", {"words": ["calls", *words]})).ok
    (status,) = await harness.read(source)
    assert status.state == READY, status.message


async def waiting(harness: HostileHarness, source: str, tool: str) -> Any:
    (pin,) = await harness.pins(source, f"{source}/{tool}", states=[pin_pb2.PIN_STATE_PENDING])
    assert_shown(pin.diff.replace("\n", ""), 20_000)
    return pin


async def decided(harness: HostileHarness, pin: Any, decision: approval_pb2.Decision.ValueType) -> None:
    await harness.hub.registry.DecidePin(
        pb.DecidePinRequest(source=pin.source, tool=pin.tool, digest=pin.digest, decision=decision)
    )


async def audited(harness: HostileHarness, tool: str) -> list[EventType]:
    return [
        event.event.type for event in await harness.hub.events(tool=tool) if event.event.type.name.startswith("PIN")
    ]


@pytest.mark.parametrize(("part", "word"), [("changed", "changed"), ("schema", "changed-schema")])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_changed_definition_is_not_called_before_it_is_approved(
    harness: HostileHarness, transport: str, part: str, word: str
) -> None:
    source = f"{transport}-{part}"
    await become(harness, source, word)
    tools = await harness.tools(source)
    assert tools["echo"].state == QUARANTINED
    assert "another than the approved one" in tools["echo"].state_reason
    pin = await waiting(harness, source, "echo")
    assert pin.change == pin_pb2.PIN_CHANGE_CHANGED
    assert ("~/.ssh/id_rsa" if part == "changed" else '"also"') in pin.diff
    refused = await harness.call(f"{source}/echo", {"text": "x"})
    assert not refused.ok
    if source in harness.servers:
        assert "echo" not in [name for name, _ in harness.servers[source].called]
    assert (await harness.call(f"{source}/add", {"a": 1, "b": 1})).ok

    await become(harness, source)
    assert (await harness.call(f"{source}/echo", {"text": "as before"})).ok
    await become(harness, source, word)
    assert not (await harness.call(f"{source}/echo", {"text": "x"})).ok
    await decided(harness, pin, approval_pb2.DECISION_APPROVE)
    assert (await harness.call(f"{source}/echo", {"text": "x", "also": "y"})).ok
    await become(harness, source)
    assert (await harness.tools(source))["echo"].state == QUARANTINED  # superseded
    events = await audited(harness, f"{source}/echo")
    assert events[:3] == [EventType.PIN_CREATED, EventType.PIN_DRIFTED, EventType.PIN_DECIDED]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_renamed_tool_does_not_get_around_its_pin(harness: HostileHarness, transport: str) -> None:
    source = f"{transport}-renamed"
    await become(harness, source, "renamed")
    tools = await harness.tools(source)
    assert "echo" not in tools
    assert tools["echo_2"].state == QUARANTINED
    pin = await waiting(harness, source, "echo_2")
    assert (pin.change, pin.renamed_from) == (pin_pb2.PIN_CHANGE_RENAMED, f"{source}/echo")
    assert not (await harness.call(f"{source}/echo_2", {"text": "x"})).ok
    await decided(harness, pin, approval_pb2.DECISION_REJECT)
    assert "rejected" in (await harness.tools(source))["echo_2"].state_reason
    await become(harness, source)
    assert (await harness.call(f"{source}/echo", {"text": "x"})).ok
    assert EventType.PIN_DRIFTED in await audited(harness, f"{source}/echo_2")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("word", "tool", "change", "why"),
    [
        ("added", "extra", pin_pb2.PIN_CHANGE_ADDED, "added by its source"),
        ("shadow", "core.fs.readText", pin_pb2.PIN_CHANGE_SHADOWED, "reads like a tool of another source"),
    ],
)
async def test_a_tool_that_appears_later_waits_and_its_siblings_do_not(
    harness: HostileHarness, transport: str, word: str, tool: str, change: int, why: str
) -> None:
    source = f"{transport}-{word}"
    assert (await harness.call(f"{source}/become", {"words": ["calls", word]})).ok
    await harness.read(source)
    found = (await harness.tools(source))[tool]
    assert (found.state, why in found.state_reason) == (QUARANTINED, True)
    assert (await waiting(harness, source, tool)).change == change
    assert not (await harness.call(f"{source}/{tool}", {})).ok
    assert (await harness.call(f"{source}/echo", {"text": "x"})).ok
    core = harness.hub.hub.toolbox.catalog.get("core/fs.readText")
    assert core is not None
    assert core.source != source


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_removed_tool_is_gone_and_callable_when_it_comes_back_as_it_was(
    harness: HostileHarness, transport: str
) -> None:
    source = f"{transport}-removed"
    await become(harness, source, "removed")
    assert "echo" not in await harness.tools(source)
    assert not (await harness.call(f"{source}/echo", {"text": "x"})).ok
    await become(harness, source)
    assert (await harness.call(f"{source}/echo", {"text": "x"})).ok


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_change_is_noticed_without_anybody_asking(harness: HostileHarness, transport: str) -> None:
    source = f"{transport}-told"
    assert (await harness.call(f"{source}/become", {"words": ["calls", "changed"]})).ok
    changed = asyncio.Event()
    stop = harness.hub.hub.toolbox.catalog.subscribe(lambda _: changed.set())
    async with asyncio.timeout(NOTICED_S):
        while (await harness.tools(source))["echo"].state == ACTIVE:
            await changed.wait()
            changed.clear()
    stop()


async def test_frequent_notices_are_read_once_a_second_at_most(harness: HostileHarness) -> None:
    """At a thousand notices a second."""

    async def storm(source: str) -> None:
        server = harness.servers[source]
        before, began_s = server.asked["tools/list"], asyncio.get_running_loop().time()
        await server.become("calls", "storm")
        async with asyncio.timeout(NOTICED_S):
            while server.asked["tools/list"] < before + 2:
                assert (await harness.call(f"{source}/echo", {"text": "x"})).ok
        took_s = asyncio.get_running_loop().time() - began_s
        assert server.asked["tools/list"] - before <= took_s + 2
        await server.become("calls")

    await asyncio.gather(storm("web-storm"), storm("new-storm"))
