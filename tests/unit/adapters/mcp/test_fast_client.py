"""The fast client sends to a server, and reads from its answers, what the SDK's client does."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from tests.fakes.artifacts import kept_in
from tests.fakes.mcp_harness import McpHarness, stage_of, started
from tests.fakes.mcp_servers.scripted import Script, serving
from tests.overtaken import overtaken
from tests.unit.adapters.mcp.both_clients import (
    CLIENT_KINDS,
    answered,
    by,
    events,
    modern,
    over,
    response,
    text_content,
)
from tests.unit.adapters.mcp.links import plain_http, soon, until, within
from tests.unit.adapters.mcp.transports.test_http import elicitation_callback, http
from toolhub_service.adapters.mcp.kind import HttpTerms, OAuthTerms
from toolhub_service.domain.call import QuestionAsked, Reply
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import Outcome

Reply_ = Callable[[Any], bytes]
PLACE = {"type": "object", "properties": {"at": {"type": "string", "x-mcp-header": "Place"}}}
PICTURE = base64.b64encode(b"\x01\x02" * 20_000).decode()
RESULTS: list[dict[str, Any]] = [
    {"content": [{"type": "text", "text": "grüß 世界"}, {"type": "text", "text": "twice"}]},
    {"content": [], "structuredContent": {"n": 1, "deep": [None, True, {"x": 1.5}]}},
    {"content": [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]},
    {"content": [{"type": "audio", "data": "AAEC", "mimeType": "audio/wav"}]},
    {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]},
    {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "inside", "mimeType": "text/plain"}}]},
    {"content": [{"type": "resource", "resource": {"uri": "file:///b", "blob": PICTURE}}]},
    {"content": [{"type": "never heard of", "x": 1}], "_meta": {"a": "b"}},
    {"content": [], "structuredContent": [1, 2, 3]},
]
FAILINGS: list[dict[str, Any]] = [
    {"content": [{"type": "text", "text": "it broke"}], "isError": True},
    {"resultType": "complete"},
    {"resultType": "unheard of", "content": []},
    {"resultType": "input_required"},
]


async def failure_of(
    harness: McpHarness, name: str = "any", *, read_only: bool = False, timeout_s: float = 20
) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        await harness.run(name, read_only=read_only, timeout_s=timeout_s)
    return caught.value.error


def summary(outcome: Outcome) -> tuple[object, ...]:
    proofs = [(proof.summary, proof.attributes) for proof in outcome.evidence]
    kept = [(ref.size_bytes, ref.sha256, ref.media_type) for ref in outcome.artifacts]
    value = orjson.dumps(outcome.value)
    for ref in outcome.artifacts:
        value = value.replace(ref.artifact_id.encode(), b"its id")
    return value, proofs, kept, outcome.truncated, outcome.raw


async def test_sent_messages_equal_those_of_the_sdk_but_for_the_id() -> None:
    script = Script()
    async with serving(script) as url:
        for way in CLIENT_KINDS:
            async with over(url, way, headers={"Authorization": "Bearer t0ken", "X-Team": "core"}) as harness:
                await harness.run("mirrors", {"at": "Ωhere", "n": [1, 2.5, None]}, key="key-1", input_schema=PLACE)
    fast, sdk = script.headers
    own = {"content-length", "connection"}
    assert {name: fast[name] for name in fast if name not in own} == {
        name: sdk[name] for name in sdk if name not in own
    }
    assert fast["mcp-method"] == "tools/call"
    assert fast["mcp-param-place"].startswith("=?base64?")
    by_fast, by_sdk = script.calls
    tokens = [call["_meta"].pop("progressToken") for call in (by_fast, by_sdk)]
    assert by_fast == by_sdk
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize("as_events", [False, True])
@pytest.mark.parametrize("result", RESULTS)
async def test_every_kind_of_content_gives_the_same_outcome_both_ways(
    result: dict[str, Any], as_events: bool, tmp_path: Path
) -> None:
    def tool(message: Any) -> bytes:
        answer = response(message, {"resultType": "complete", **result})
        return events(answer) if as_events else http(answer)

    found = []
    for way in CLIENT_KINDS:
        async with answered(tool, way, artifacts=kept_in(tmp_path).artifacts, keep_raw=True) as harness:
            found.append(summary(await harness.run("any")))
    assert found[0] == found[1]


@pytest.mark.parametrize("result", FAILINGS)
async def test_a_result_that_is_no_success_gives_the_same_failure_both_ways(result: dict[str, Any]) -> None:
    found = []
    for way in CLIENT_KINDS:
        async with answered(lambda message: http(response(message, result)), way) as harness:
            found.append(await failure_of(harness))
    assert found[0] == found[1]


def error(code: int, status: str = "200 OK", **more: object) -> Reply_:
    def reply(message: Any) -> bytes:
        body = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": "because"}, **more}
        return http(orjson.dumps(body), status=status)

    return reply


def always(data: bytes) -> Reply_:
    return lambda _: data


@pytest.mark.parametrize(
    "reply",
    [
        error(-32602, "400 Bad Request"),
        error(-32602),
        error(-32020, "400 Bad Request"),
        error(-32021, "400 Bad Request"),
        error(-32601, "404 Not Found"),
        error(-32603, "500 Oops"),
        error(-32700, "400 Bad Request", id=None),
        always(http(b"<html>", status="404 Not Found", kind="text/html")),
        always(http(b"<html>", status="400 Bad Request", kind="text/html")),
        always(http(b"<html>", kind="text/html")),
        always(http(b"", status="202 Accepted")),
        always(http(b"", status="401 Who")),
        always(http(b"", status="429 Slow Down")),
        always(http(b"", status="503 Later")),
        always(http(b"", "location: http://169.254.169.254/mcp", status="307 Over There")),
        always(http(b"not JSON")),
        always(http(b"[]")),
        always(http(b'{"id": 1, "result": {}}')),
        always(http(b"\x00", "content-encoding: br")),
        always(http(b"[" + b"1," * 5_000_000 + b"1]")),
        always(events(b"x" * 9_000_000)),
        always(events(b"not JSON")),
        always(events()),
        always(b""),
        always(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"),
        always(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 50\r\n\r\ndata: {"),
        always(b"not HTTP at all\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
async def test_failures_are_reported_alike_by_both_clients(reply: Reply_, read_only: bool) -> None:
    found = []
    for way in CLIENT_KINDS:
        async with answered(reply, way) as harness:
            found.append(await failure_of(harness, read_only=read_only))
            assert harness.link.is_connected
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "id": "another", "result": {"content": []}},
        {"jsonrpc": "2.0", "result": {"content": []}},
        {"jsonrpc": "2.0", "id": "hub-1", "result": []},
        {"jsonrpc": "2.0", "id": "hub-1", "result": {"content": []}, "error": {"code": 1, "message": "x"}},
        {"jsonrpc": "2.0", "id": "hub-1", "error": {"code": "1", "message": "x"}},
        {"jsonrpc": "2.0", "id": "hub-1", "error": "x"},
        {"jsonrpc": "2.0", "id": ["hub-1"], "error": {"code": 1, "message": "x"}},
        {"jsonrpc": "2.0", "id": "hub-1"},
        {"id": "hub-1", "result": {"content": []}},
    ],
)
@pytest.mark.parametrize("as_events", [False, True])
async def test_a_reply_to_another_call_is_not_taken_for_the_answer(body: dict[str, Any], as_events: bool) -> None:
    data = orjson.dumps(body)
    async with answered(always(events(data) if as_events else http(data)), "fast") as harness:
        assert (await failure_of(harness)).kind is ErrorKind.OUTCOME_UNKNOWN
        assert (await failure_of(harness, read_only=True)).kind is ErrorKind.UPSTREAM_ERROR


async def test_a_redirect_is_left_to_the_sdk_and_the_fast_client_is_not_tried_again() -> None:
    paths = []

    def answer(verb: str, headers: dict[str, str], body: bytes) -> bytes:
        paths.append(verb.split()[1])
        if orjson.loads(body)["method"] == "tools/call" and verb == "POST /mcp":
            return http(b"", "location: /mcp/", status="307 Over There")
        return modern(lambda message: http(response(message, text_content("there"))))(verb, headers, body)

    async with elicitation_callback(answer) as url, over(url, "fast") as harness:
        session = await harness.link.session(soon())
        paths.clear()
        assert await harness.value("any") == {"text": "there"}
        assert paths == ["/mcp", "/mcp", "/mcp/"]
        assert session.requests.fast is not None
        assert not session.requests.fast.is_open
        assert await harness.value("any") == {"text": "there"}
        assert paths[3:] == ["/mcp", "/mcp/"]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "304 As Before"])
async def test_a_server_that_may_have_acted_before_it_redirected_is_not_asked_again(status: str) -> None:
    calls = []

    def tool(_: Any) -> bytes:
        calls.append(1)
        return http(b"", "location: /mcp/", status=status)

    async with answered(tool, "fast") as harness:
        assert (await failure_of(harness)).kind is ErrorKind.OUTCOME_UNKNOWN
        assert len(calls) == 1


async def test_progress_is_handed_on_and_only_that_of_the_call() -> None:
    def tool(message: Any) -> bytes:
        token = message["params"]["_meta"]["progressToken"]
        news = [
            {"progressToken": token, "progress": 1, "total": 2, "message": "half"},
            {"progressToken": "another", "progress": 77},
            {"progressToken": token, "progress": "much"},
            {"progressToken": token, "progress": 2, "total": "x", "message": 5},
        ]
        notes = [{"jsonrpc": "2.0", "method": "notifications/progress", "params": each} for each in [*news, None]]
        other = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hi"}}
        return events(*map(orjson.dumps, [*notes, other]), response(message, text_content("done")))

    async with answered(tool, "fast") as harness:
        reports: list[tuple[float, float | None, str | None]] = []

        async def hearing(progress: float, total: float | None, message: str | None) -> None:
            reports.append((progress, total, message))

        session = await harness.link.session(soon())
        assert session.requests.fast is not None
        params = {"name": "any", "_meta": {}}
        assert (await session.requests.fast.send("tools/call", params, {}, on_progress=hearing))["content"]
        assert reports == [(1, 2, "half"), (2, None, None)]
        assert await harness.value("any") == {"text": "done"}
        assert [news.step for news in harness.sink.progresses] == [1, 2]


async def test_a_flood_of_events_leaves_the_loop_its_turns() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with answered(
        lambda message: events(*[note] * 5_000, response(message, text_content("last"))), "fast"
    ) as harness:
        other = asyncio.create_task(turning())
        assert await harness.value("any") == {"text": "last"}
        other.cancel()
    assert turns > 100


async def test_a_question_and_its_reply_go_the_same_way() -> None:
    async with serving(Script()) as url, over(url, "fast", elicitation="ask") as harness:
        with pytest.raises(QuestionAsked) as asked:
            await harness.run("ask")
        reply = Reply({"colour": "green"}, asked.value.question.continuation)
        assert "green" in str(await harness.value("ask", reply=reply))


async def test_frozen_arguments_are_sent_as_they_are() -> None:
    script = Script()
    async with serving(script) as url, over(url, "fast") as harness:
        call = harness.call("echo", {"text": "x", "more": MappingProxyType({"a": (1, 2)})})
        await harness.adapter.execute(call, harness.sink)
    assert script.calls[0]["arguments"] == {"text": "x", "more": {"a": [1, 2]}}


@pytest.mark.parametrize("flags", [("--json",), ()])
async def test_over_a_real_server_a_hundred_calls_at_once_are_right_and_the_next_works_after_one_is_late(
    flags: tuple[str, ...],
) -> None:
    async with plain_http(*flags) as server, over(server.url, "fast") as harness:
        sums = await asyncio.gather(*(harness.value("add", {"a": n, "b": 1}) for n in range(100)))
        assert sums == [{"result": n + 1} for n in range(100)]
        with pytest.raises(ToolFailure) as late:
            await harness.run("sleep", {"seconds": 60}, timeout_s=0.3)
        assert late.value.error.kind is ErrorKind.TIMEOUT
        assert await harness.value("add", {"a": 1, "b": 1}) == {"result": 2}
        assert harness.link.connects == 1


async def test_a_server_is_notified_of_a_cancelled_and_of_a_late_call() -> None:
    script = Script()
    async with serving(script) as url, over(url, "fast") as harness:
        running = asyncio.create_task(harness.run("hangs"))
        await script.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await within(30, script.stopped.wait())
        script.stopped.clear()
        script.started.clear()
        late = await overtaken(
            lambda timeout_s: failure_of(harness, "hangs", timeout_s=timeout_s), lambda _: script.started.is_set()
        )
        assert late.kind is ErrorKind.TIMEOUT
        await within(30, script.stopped.wait())


async def test_a_server_that_is_killed_leaves_what_may_have_run_unknown_and_the_rest_unsent() -> None:
    async with plain_http("--json") as server, over(server.url, "fast") as harness:
        await harness.run("echo", {"text": "warm"})
        unsure = asyncio.create_task(harness.run("sleep", {"seconds": 60}))
        harmless = asyncio.create_task(harness.run("sleep", {"seconds": 60}, read_only=True))
        await asyncio.gather(*(harness.run("echo", {"text": "later"}) for _ in range(5)))
        await server.kill()
        with pytest.raises(ToolFailure) as lost:
            await unsure
        with pytest.raises(ToolFailure) as broken:
            await harmless
        assert lost.value.error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert broken.value.error.kind is ErrorKind.UPSTREAM_ERROR
        assert broken.value.error.retryable
        unsent = await failure_of(harness, timeout_s=5)
        assert unsent.kind is ErrorKind.TOOL_UNAVAILABLE
        await server.start()
        await until(lambda: harness.link.is_connected)
        assert await harness.value("echo", {"text": "again"}) == {"result": "again"}


async def test_an_older_server_has_no_fast_client() -> None:
    async with serving(Script(generation="legacy")) as url, started(stage_of(HttpTerms(url))) as harness:
        assert (await harness.link.session(soon())).requests.fast is None


async def test_a_fast_client_ends_with_its_connection() -> None:
    async with serving(Script()) as url, over(url, "fast") as harness:
        session = await harness.link.session(soon())
    assert session.requests.fast is not None
    assert not session.requests.fast.is_open


async def test_calls_have_the_sources_token_and_go_out_again_with_another_one_when_it_is_refused() -> None:
    good, runs = ["none yet"], []

    def answer(verb: str, headers: dict[str, str], body: bytes) -> bytes:
        if verb == "POST /token":
            good.append(f"token-{len(good)}")
            return http(orjson.dumps({"access_token": good[-1], "token_type": "Bearer", "expires_in": 3600}))
        if headers.get("authorization") != f"Bearer {good[-1]}":
            return http(b"", status="401 Who")

        def run(message: Any) -> bytes:
            runs.append(headers["authorization"])
            return http(response(message, text_content("mine")))

        return modern(run)(verb, headers, body)

    async with elicitation_callback(answer) as url:
        oauth = OAuthTerms("hub", "s3cret", url.replace("/mcp", "/token"))
        async with started(stage_of(HttpTerms(url, oauth=oauth))) as harness:
            await by(harness, "fast")
            assert await harness.value("any") == {"text": "mine"}
            good.append("another, that the hub does not know")
            assert await harness.value("any") == {"text": "mine"}
    assert runs == ["Bearer token-1", "Bearer token-3"]
