"""MCP servers that lie about their tools: what becomes of the source, of each tool, and of those beside it."""

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

pytestmark = pytest.mark.asyncio(loop_scope="module")

READING_S = 10.0
"""What never answers is read beside all the others; a starved machine must be able to read the largest of them."""
WAYS = {
    "pipe": {"over": "stdio"},
    "web": {"over": "http", "generation": "legacy"},
    "new": {"over": "http", "generation": "modern"},
}


class Fate(NamedTuple):
    state: int
    message: str = ""
    """Part of the source's message."""
    bad: Mapping[str, str] = MappingProxyType({})
    """Tools that are quarantined, and part of the reason."""
    good: tuple[str, ...] = ("echo", "add")
    total: int = -1


NOT_YET = "nobody has approved"
CUT_OFF = "larger than the source's limit"
GARBLED = "cannot be decoded"
FATES: dict[str, Fate] = {
    "shadow": Fate(PARTIAL, "`core/fs.readText` was left out", {"core.fs.readText": "reads like a tool of another"}),
    "huge-description": Fate(DOWN, CUT_OFF, good=()),
    "exponential": Fate(READY, bad={"exponential": "too_complex"}),
    "cyclic": Fate(READY, bad={"cycle_self": "endless", "cycle_two": "endless"}, good=("echo", "add", "cycle_tree")),
    "patterns": Fate(READY, bad={"pattern_4": "linear", "pattern_5": "broken"}, total=8),
    "remote-ref": Fate(READY, bad={"remote_ref": "points outside the document"}),
    "surrogate": Fate(DOWN, GARBLED, good=()),
    "hidden": Fate(
        READY,
        bad=dict.fromkeys(("tags", "bidi", "ansi", "zero_width", "comment", "order", "inside"), NOT_YET),
    ),
    "wrong-types": Fate(
        PARTIAL,
        "without a name was left out",
        {
            "description_list": "not text",
            "schema_text": "not a JSON object",
            "schema_array": "arguments are an object",
            "schema_true": "not a JSON object",
            "schema_missing": "there is none",
            "annotations_list": "not a JSON object",
        },
    ),
    "odd-names": Fate(PARTIAL, "without a name was left out", good=("add", "ECHO")),
    "duplicates": Fate(PARTIAL, "`twin` was left out", good=("echo", "add", "twin")),
    "liar": Fate(READY, good=("echo", "add", "erase_everything")),
    "many": Fate(PARTIAL, "cut at 2000 tools", total=2_000),
    "endless": Fate(PARTIAL, "cut at 2000 tools", total=2_000),
    "cursor-loop": Fate(PARTIAL, "form a loop"),
    "list-never": Fate(DOWN, f"did not answer within {READING_S:g} s", good=()),
    "list-error": Fate(DOWN, "The server says", good=()),
    "list-garbage": Fate(DOWN, "no tools", good=()),
    "list-half": Fate(DOWN, "", good=()),
    "many page-error": Fate(PARTIAL, "read only in part", total=100),
    "hello-never": Fate(DOWN, "did not answer the handshake", good=()),
    "hello-garbage": Fate(DOWN, "", good=()),
    "hello-exit": Fate(DOWN, "", good=()),
    "hello-version": Fate(DOWN, "", good=()),
    "hello-flood": Fate(DOWN, "", good=()),
}
ENDLESS = {"many": "web", "endless": "pipe"}
"""One way each: 2,000 tools are read, judged and pinned of both."""
DEEP = {
    "pipe": Fate(READY, bad={"deep": "nested too deeply"}),
    "web": Fate(DOWN, GARBLED, good=()),
    "new": Fate(DOWN, GARBLED, good=()),
}
NAN = {
    "pipe": Fate(DOWN, GARBLED, good=()),
    "web": Fate(READY, bad={"nan": "not a JSON value"}),
    "new": Fate(READY, bad={"nan": "not a JSON value"}),
}
"""The SDK reads what comes over HTTP, and the hub what comes by pipes: strictly, and deeper."""
HTTP = {
    "http-redirect": "origin that the source does not allow",
    "http-401": "credentials",
    "http-500": "HTTP error",
    "http-html": "refused the handshake",
    "http-half": "did not answer the handshake",
    "http-no-head": "broke",
}


def a_name(words: str, way: str) -> str:
    return f"{way}-{words.replace(' ', '-')}"


def cases() -> dict[str, tuple[str, str, Fate]]:
    """By the name of the source: the words, the way and the fate."""
    found = {
        a_name(words, way): (words, way, fate)
        for words, fate in FATES.items()
        for way in ("pipe", "web")
        if words not in ENDLESS or ENDLESS[words] == way
    }
    found |= {
        a_name(words, "new"): (words, "new", FATES[words]) for words in ("hidden", "shadow", "cyclic", "list-half")
    }
    for word, fates in (("deep", DEEP), ("nan", NAN)):
        found |= {a_name(word, way): (word, way, fate) for way, fate in fates.items()}
    found |= {a_name(word, "web"): (word, "web", Fate(DOWN, expected, good=())) for word, expected in HTTP.items()}
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
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, HostileHarness]]:
    """Two hubs, for a hub has at most 64 sources; by source."""
    pipes, webs = (
        {
            name: {"hostile": words.split(), "connect_timeout_s": CONNECT_S.get(words, 10.0), **WAYS[way]}
            for name, (words, way, _) in CASES.items()
            if (way == "pipe") is is_pipe
        }
        for is_pipe in (True, False)
    )
    async with (
        hostile_hub(tmp_path_factory.mktemp("pipes"), pipes, reading_timeout_s=READING_S) as piped,
        hostile_hub(tmp_path_factory.mktemp("webs"), webs, reading_timeout_s=READING_S) as webbed,
    ):
        yield dict.fromkeys(pipes, piped) | dict.fromkeys(webs, webbed)


@pytest.mark.parametrize("name", CASES)
async def test_a_server_that_lies_about_its_tools_is_reported_as_what_it_is(
    stages: dict[str, HostileHarness], name: str
) -> None:
    harness, (_, _, fate) = stages[name], CASES[name]
    status, loop = await harness.status(name), asyncio.get_running_loop()
    give_up_s = loop.time() + 60.0
    while (status.state != fate.state or fate.message not in status.message) and (
        loop.time() < give_up_s  # sixty servers have started at once, and a busy machine answers none of them in time
    ):
        (status,) = await harness.read(name)
    assert_status_fit([status])
    assert status.state == fate.state, status.message
    assert fate.message in status.message
    tools = await harness.tools(name)
    for tool, why in fate.bad.items():
        assert tools[tool].state == QUARANTINED
        assert why in tools[tool].state_reason
        assert_shown(tools[tool].state_reason, 1_000)
    for tool in fate.good:
        assert tools[tool].state == ACTIVE, tools[tool].state_reason
    if "echo" in fate.good:
        assert (await harness.call(f"{name}/echo", {"text": "hi"})).result_json == b'{"text":"hi"}'
    while len(tools) != status.tools:  # the server has said something else since its state was asked for
        status, tools = await harness.status(name), await harness.tools(name)
    assert len(tools) == (len(tools) if fate.total < 0 else fate.total)
    for tool in fate.bad:
        refused = await harness.call(f"{name}/{tool}", {})
        assert refused.error.kind, refused
        assert tool in refused.error.message


async def test_no_name_of_a_tool_hides_anything_or_leaves_the_grammar(stages: dict[str, HostileHarness]) -> None:
    for name in ("pipe-odd-names", "web-odd-names"):
        tools = await stages[name].tools(name)
        assert {"etc" in tool for tool in tools} == {True, False}
        for tool in tools:
            assert_shown(tool, 128)
            assert "/" not in tool
            assert tool.isascii()


async def test_what_a_server_says_of_harm_is_not_believed(stages: dict[str, HostileHarness]) -> None:
    for name in ("pipe-liar", "web-liar"):
        tool: Any = (await stages[name].tools(name))["erase_everything"]
        assert not tool.annotations.read_only
        assert not tool.annotations.idempotent


async def test_what_waits_says_what_was_found_and_hides_nothing_of_it(stages: dict[str, HostileHarness]) -> None:
    for way in ("pipe", "web", "new"):
        name = a_name("hidden", way)
        for pin in await stages[name].pins(name, states=[1]):
            assert pin.findings, pin.tool
            assert_shown("".join(pin.findings), 3_000)
            assert_shown(pin.diff.replace("\n", ""), 10_000)


async def test_of_names_that_read_alike_the_first_waits_and_the_others_are_reported(
    stages: dict[str, HostileHarness],
) -> None:
    for way in ("pipe", "web", "new"):
        name = a_name("shadow", way)
        (pin,) = [pin for pin in await stages[name].pins(name) if pin.tool.endswith("core.fs.readText")]
        assert "reads like `core/" in pin.findings[0]
        message = (await stages[name].status(name)).message
        assert "`core/fs.readText` was left out" in message
        assert "`core__fs_readText` was left out" in message


async def test_every_list_of_the_hub_stays_bounded_and_names_all_sources(stages: dict[str, HostileHarness]) -> None:
    for harness in set(stages.values()):
        mine = {name for name in CASES if stages[name] is harness}
        answer = await harness.hub.registry.ListSources(pb.ListSourcesRequest())
        assert answer.ByteSize() < 1_000_000
        assert mine <= {status.source for status in answer.sources}
        assert_status_fit(answer.sources)
