"""MCP servers that lie about their tools: the state of the source, of each tool, and of those beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.security.hostile_harness import (
    ACTIVE,
    DOWN,
    PARTIAL,
    QUARANTINED,
    READY,
    HostileHarness,
    assert_shown,
    assert_status_fit,
    hostile_hub,
)
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.schema.repaired_json import HALVES, NO_NUMBER

pytestmark = pytest.mark.asyncio(loop_scope="module")

READING_S = 10.0
"""What never answers is read beside all the others; a starved machine must be able to read the largest of them."""
TRANSPORTS = {
    "pipe": {"over": "stdio"},
    "web": {"over": "http", "generation": "legacy"},
    "new": {"over": "http", "generation": "modern"},
}


class ExpectedStatus(NamedTuple):
    state: int
    message: str = ""
    """Part of the source's message."""
    bad: Mapping[str, str] = MappingProxyType({})
    """Tools that are quarantined, and part of the reason."""
    good: tuple[str, ...] = ("echo", "add")
    total: int = -1
    """Tools of the source; negative: any number."""
    diagnostic: str = ""
    """Part of the source's diagnostics."""


NOT_YET = "nobody has approved"
CUT_OFF = "larger than `max_message_bytes`"
GARBLED = "cannot be decoded"
EXPECTED: dict[str, ExpectedStatus] = {
    "shadow": ExpectedStatus(
        READY, bad={"core.fs.readText": "reads like a tool of another"}, diagnostic="name reads like it", total=5
    ),
    "huge-description": ExpectedStatus(DOWN, CUT_OFF, good=()),
    "exponential": ExpectedStatus(READY, bad={"exponential": "too_complex"}),
    "cyclic": ExpectedStatus(
        READY, bad={"cycle_self": "endless", "cycle_two": "endless"}, good=("echo", "add", "cycle_tree")
    ),
    "patterns": ExpectedStatus(
        READY,
        good=("echo", "add", *(f"pattern_{number}" for number in range(6))),
        total=8,
        diagnostic="is not enforced",
    ),
    "remote-ref": ExpectedStatus(READY, good=("echo", "add", "remote_ref"), diagnostic="leads nowhere"),
    "surrogate": ExpectedStatus(READY, good=("echo", "add", "surrogate"), total=3, diagnostic=HALVES),
    "nan": ExpectedStatus(READY, good=("echo", "add", "nan"), total=3, diagnostic=NO_NUMBER),
    "hidden": ExpectedStatus(
        READY,
        bad=dict.fromkeys(("tags", "bidi", "ansi", "zero_width", "comment", "order", "inside"), NOT_YET),
    ),
    "wrong-types": ExpectedStatus(
        PARTIAL,
        "without a name was left out",
        good=("description_list", "schema_text", "schema_array", "schema_true", "schema_missing", "annotations_list"),
        diagnostic="`annotations_list`: annotations is not a JSON object",
    ),
    "odd-names": ExpectedStatus(PARTIAL, "without a name was left out", diagnostic="`ECHO` is `"),
    "duplicates": ExpectedStatus(PARTIAL, "`twin` is listed twice", good=("echo", "add", "twin")),
    "liar": ExpectedStatus(READY, good=("echo", "add", "erase_everything")),
    "many": ExpectedStatus(PARTIAL, "cut at 2000 tools", total=2_000),
    "endless": ExpectedStatus(PARTIAL, "cut at 2000 tools", total=2_000),
    "cursor-loop": ExpectedStatus(PARTIAL, "form a loop"),
    "list-never": ExpectedStatus(DOWN, f"did not answer within {READING_S:g} s", good=()),
    "list-error": ExpectedStatus(DOWN, "The server says", good=()),
    "list-garbage": ExpectedStatus(DOWN, "no tools", good=()),
    "list-half": ExpectedStatus(DOWN, "", good=()),
    "many page-error": ExpectedStatus(PARTIAL, "read only in part", total=100),
    "hello-never": ExpectedStatus(DOWN, "did not answer the handshake", good=()),
    "hello-garbage": ExpectedStatus(DOWN, "", good=()),
    "hello-exit": ExpectedStatus(DOWN, "", good=()),
    "hello-version": ExpectedStatus(DOWN, "", good=()),
    "hello-flood": ExpectedStatus(DOWN, "", good=()),
}
ENDLESS = {"many": "web", "endless": "pipe"}
"""One transport each: 2,000 tools are read, judged and pinned of both."""
DEEP = {
    "pipe": ExpectedStatus(READY, bad={"deep": "nested too deeply"}),
    "web": ExpectedStatus(DOWN, GARBLED, good=()),
    "new": ExpectedStatus(DOWN, GARBLED, good=()),
}
"""The SDK reads what comes over HTTP, and the hub what comes by pipes: it reads deeper."""
HTTP = {
    "http-redirect": "origin that the source does not allow",
    "http-401": "credentials",
    "http-500": "HTTP error",
    "http-html": "not MCP: check `url`",
    "http-half": "did not answer the handshake",
    "http-no-head": "broke",
}


def source_name(words: str, transport: str) -> str:
    return f"{transport}-{words.replace(' ', '-')}"


def cases() -> dict[str, tuple[str, str, ExpectedStatus]]:
    """By the name of the source: the words, the transport and the expected status."""
    found = {
        source_name(words, transport): (words, transport, expected_status)
        for words, expected_status in EXPECTED.items()
        for transport in ("pipe", "web")
        if words not in ENDLESS or ENDLESS[words] == transport
    }
    found |= {
        source_name(words, "new"): (words, "new", EXPECTED[words])
        for words in ("hidden", "shadow", "cyclic", "list-half", "surrogate", "nan")
    }
    found |= {
        source_name("deep", transport): ("deep", transport, expected_status)
        for transport, expected_status in DEEP.items()
    }
    found |= {
        source_name(word, "web"): (word, "web", ExpectedStatus(DOWN, expected, good=()))
        for word, expected in HTTP.items()
    }
    return found


CASES = cases()
CONNECT_S = {
    "hello-never": 2.0,
    "hello-garbage": 2.0,
    "hello-flood": 2.0,
    "hello-version": 3.0,
    "http-half": 2.0,
    "huge-description": 30.0,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harnesses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, HostileHarness]]:
    """Two hubs, for a hub has at most 64 sources; by source."""
    pipes, webs = (
        {
            name: {"hostile": words.split(), "connect_timeout_s": CONNECT_S.get(words, 10.0), **TRANSPORTS[transport]}
            for name, (words, transport, _) in CASES.items()
            if (transport == "pipe") is is_pipe
        }
        for is_pipe in (True, False)
    )
    async with (
        hostile_hub(tmp_path_factory.mktemp("pipes"), pipes, reading_timeout_s=READING_S) as piped,
        hostile_hub(tmp_path_factory.mktemp("webs"), webs, reading_timeout_s=READING_S) as webbed,
    ):
        yield dict.fromkeys(pipes, piped) | dict.fromkeys(webs, webbed)


@pytest.mark.parametrize("name", CASES)
async def test_a_server_that_lies_about_its_tools_has_its_expected_status(
    harnesses: dict[str, HostileHarness], name: str
) -> None:
    harness, (_, _, expected_status) = harnesses[name], CASES[name]
    status, loop = await harness.status(name), asyncio.get_running_loop()
    give_up_s = loop.time() + 60.0
    while (status.state != expected_status.state or expected_status.message not in status.message) and (
        loop.time() < give_up_s  # sixty servers have started at once, and a busy machine answers none of them in time
    ):
        (status,) = await harness.read(name)
    assert_status_fit([status])
    assert status.state == expected_status.state, status.message
    assert expected_status.message in status.message
    assert expected_status.diagnostic in "\n".join(status.diagnostics)
    tools = await harness.tools(name)
    for tool, why in expected_status.bad.items():
        assert tools[tool].state == QUARANTINED
        assert why in tools[tool].state_reason
        assert_shown(tools[tool].state_reason, 1_000)
    for tool in expected_status.good:
        assert tools[tool].state == ACTIVE, tools[tool].state_reason
    if "echo" in expected_status.good:
        assert (await harness.call(f"{name}/echo", {"text": "hi"})).result_json == b'{"text":"hi"}'
    while len(tools) != status.tools:  # the server has said something else since its state was asked for
        status, tools = await harness.status(name), await harness.tools(name)
    if expected_status.total >= 0:
        assert len(tools) == expected_status.total
    for tool in expected_status.bad:
        refused = await harness.call(f"{name}/{tool}", {})
        assert refused.error.kind, refused
        assert tool in refused.error.message


async def test_no_name_of_a_tool_hides_anything_or_leaves_the_grammar(harnesses: dict[str, HostileHarness]) -> None:
    for name in ("pipe-odd-names", "web-odd-names"):
        tools = await harnesses[name].tools(name)
        assert {"etc" in tool for tool in tools} == {True, False}
        for tool in tools:
            assert_shown(tool, 128)
            assert "/" not in tool
            assert tool.isascii()


async def test_harmless_annotations_of_a_server_are_not_believed(harnesses: dict[str, HostileHarness]) -> None:
    for name in ("pipe-liar", "web-liar"):
        tool: Any = (await harnesses[name].tools(name))["erase_everything"]
        assert not tool.annotations.read_only
        assert not tool.annotations.idempotent


async def test_a_pending_definition_states_its_findings_and_hides_nothing(harnesses: dict[str, HostileHarness]) -> None:
    for transport in ("pipe", "web", "new"):
        name = source_name("hidden", transport)
        for pin in await harnesses[name].pins(name, states=[1]):
            assert pin.findings, pin.tool
            assert_shown("".join(pin.findings), 3_000)
            assert_shown(pin.diff.replace("\n", ""), 10_000)


async def test_no_suffix_hides_that_a_name_reads_like_another_sources(harnesses: dict[str, HostileHarness]) -> None:
    for transport in ("pipe", "web", "new"):
        name = source_name("shadow", transport)
        shadows = [pin for pin in await harnesses[name].pins(name) if "readText" in pin.tool]
        assert len(shadows) == 3
        assert all("reads like `core/" in pin.findings[0] for pin in shadows)
        tools = await harnesses[name].tools(name)
        assert {tools[pin.tool.partition("/")[2]].state for pin in shadows} == {QUARANTINED}


async def test_every_list_of_the_hub_stays_bounded_and_names_all_sources(harnesses: dict[str, HostileHarness]) -> None:
    for harness in set(harnesses.values()):
        mine = {name for name in CASES if harnesses[name] is harness}
        answer = await harness.hub.registry.ListSources(pb.ListSourcesRequest())
        assert answer.ByteSize() < 1_000_000
        assert mine <= {status.source for status in answer.sources}
        assert_status_fit(answer.sources)
