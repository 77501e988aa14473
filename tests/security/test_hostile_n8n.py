"""A hostile n8n, or a server in its place: it costs bounded memory, time and trust."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.http_server import RawServer, RecordedRequest, response, serving
from tests.fakes.n8n import How
from tests.fakes.remote_harness import RecordingSink
from tests.overtaken import overtaken
from tests.unit.adapters.n8n.n8n_harness import ASYNC, JOB_ID, SYNC, N8nHarness, against, n8n_harness
from toolhub_service.adapters.n8n.adapter import base_url
from toolhub_service.adapters.n8n.client import N8nClient
from toolhub_service.adapters.n8n.kind import N8nDiscovery, N8nSource
from toolhub_service.adapters.n8n.server import plain_path
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import Outcome
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.guards.secrets import Redactor
from toolhub_service.sections.source_config import SourceValues, request_headers

KEY = "n8n_api_0123456789abcdef"
Respond = Callable[[RecordedRequest], bytes]


@asynccontextmanager
async def hostile(respond: Respond, **more: Any) -> AsyncIterator[tuple[RawServer, N8nHarness]]:
    """A source before a server that says what it likes."""

    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(respond(asked))
        await writer.drain()
        return False

    async with serving(answer) as raw:
        named = more.pop("workflows", {"tool": SYNC})
        async with against(raw.url("").rstrip("/"), named, **{"lookup_timeout_s": 0.05, **more}) as harness:
            yield raw, harness


def _json(value: Any, status: int = 200, **headers: str) -> bytes:
    return response(json.dumps(value).encode(), status=status, **headers)


def _is_api(asked: RecordedRequest) -> bool:
    return asked.target.startswith("/api/")


class TestHostileAnswers:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_no_redirect_is_followed(self, status: int) -> None:
        async with serving(_nothing) as elsewhere:
            where = elsewhere.url("/stolen")
            async with hostile(lambda _: response(status=status, location=where)) as (raw, harness):
                error = await harness.failure("tool", {"text": "confidential"})
            assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
            assert len(raw.asked) == 1
            assert not elsewhere.asked

    async def test_no_redirect_of_the_api_takes_the_key_along(self) -> None:
        async with serving(_nothing) as elsewhere:
            where = elsewhere.url("/api/v1/workflows")
            async with hostile(lambda _: response(status=302, location=where), api_key=KEY) as (_, harness):
                assert (await harness.discover()).problems
            assert not elsewhere.asked

    @pytest.mark.parametrize("opening", [b"[", b'{"a":'])
    async def test_an_endlessly_nested_value_is_no_result(self, opening: bytes) -> None:
        async with hostile(lambda _: response(opening * 50_000)) as (_, harness):
            error = await harness.failure("tool")
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert "ran" in error.message

    async def test_a_bomb_is_cut_as_it_unfolds(self) -> None:
        bomb = gzip.compress(b'"' + b"x" * 20_000_000 + b'"')
        async with hostile(lambda _: response(bomb, content_encoding="gzip")) as (_, harness):
            error = await harness.failure("tool")
        assert error.kind is ErrorKind.HTTP_TOO_LARGE

    async def test_headers_without_end_are_no_answer(self) -> None:
        many = "".join(f"x-{n}: y\r\n" for n in range(1_000)).encode()
        async with hostile(lambda _: b"HTTP/1.1 200 OK\r\n" + many + b"content-length: 2\r\n\r\n{}") as (_, harness):
            assert (await harness.failure("tool")).kind is ErrorKind.OUTCOME_UNKNOWN

    @pytest.mark.parametrize("junk", [b"", b"\x00" * 100, b"HTTP/9.9 what\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad\r\n\r\n"])
    async def test_a_non_http_answer_is_an_unknown_outcome(self, junk: bytes) -> None:
        async with hostile(lambda _: junk) as (raw, harness):
            assert (await harness.failure("tool")).kind is ErrorKind.OUTCOME_UNKNOWN
        assert len(raw.asked) == 1

    async def test_an_answer_that_never_ends_is_left_at_the_deadline(self) -> None:
        async with n8n_harness({"echo": SYNC}, with_api=False) as harness:
            harness.n8n.fails("/webhook/*", How.STALL)
            error = await overtaken(
                lambda timeout_s: harness.failure("echo", timeout_s=timeout_s),
                lambda error: error.kind is ErrorKind.OUTCOME_UNKNOWN,
            )
        assert not error.is_retryable

    async def test_no_cookie_is_kept(self) -> None:
        async with hostile(lambda _: _json({}, set_cookie="id=1; Path=/")) as (raw, harness):
            for _ in range(2):
                await harness.value("tool")
        assert all("cookie" not in asked.headers for asked in raw.asked)

    async def test_traces_hints_paths_and_secrets_do_not_get_through(self) -> None:
        body = {"message": "broken by s3cret at /home/node/x.js:1:2\n    at run (/opt/n8n/a.ts:3)", "hint": "set PATH"}
        async with hostile(lambda _: _json({**body, "stacktrace": "/opt/n8n/secret.ts"}, 500)) as (_, harness):
            text = repr(await harness.failure("tool"))
        for leaked in ("s3cret", "/home", "/opt", "set PATH", "stacktrace"):
            assert leaked not in text

    async def test_words_without_end_are_cut(self) -> None:
        async with hostile(lambda _: _json({"message": "x" * 1_000_000}, 500)) as (_, harness):
            error = await harness.failure("tool")
        assert len(repr(error)) < 10_000


class TestHostileExecutions:
    @pytest.mark.parametrize(
        "name", ["../workflows/1", "1/stop", "1?x=y", "", " ", "1\r\nx: y", "x" * 65, 1.5, True, {}]
    )
    async def test_an_id_that_is_none_never_gets_into_a_url(self, name: Any) -> None:
        def respond(asked: RecordedRequest) -> bytes:
            return _json({"data": []}) if _is_api(asked) else _json({"executionId": name})

        async with hostile(respond, api_key=KEY, workflows={"tool": ASYNC}) as (raw, harness):
            call = await harness.call("tool", job_id=JOB_ID)
            error = await harness.ended(harness.adapter.execute(call, RecordingSink()))
        assert isinstance(error, ToolError)
        assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")
        paths = {asked.target.partition("?")[0] for asked in raw.asked}
        assert paths == {"/webhook/tool", "/api/v1/executions", "/api/v1/workflows"}

    async def test_another_execution_than_was_asked_for_is_no_answer(self) -> None:
        def respond(asked: RecordedRequest) -> bytes:
            if _is_api(asked):
                return _json({"id": "2", "status": "success", "data": {}})
            return _json({"executionId": "1"})

        async with hostile(respond, api_key=KEY, workflows={"tool": ASYNC}) as (raw, harness):
            call = await harness.call("tool", job_id=JOB_ID)
            running = asyncio.create_task(harness.adapter.execute(call, RecordingSink()))
            while len(raw.asked) < 6:
                raw.arrived.clear()
                await asyncio.wait_for(raw.arrived.wait(), 10)
            assert not running.done()
            running.cancel()
            await asyncio.wait({running})

    @pytest.mark.promise("workflow.never-false-done")
    async def test_an_unknown_status_is_never_taken_for_done(self) -> None:
        def respond(asked: RecordedRequest) -> bytes:
            if _is_api(asked):
                return _json({"id": "1", "status": "SUCCEEDED!", "finished": True, "data": {}})
            return _json({"executionId": "1"})

        async with hostile(respond, api_key=KEY, workflows={"tool": ASYNC}) as (_, harness):
            sink = RecordingSink()
            call = await harness.call("tool", job_id=JOB_ID)
            running = asyncio.create_task(harness.adapter.execute(call, sink))
            await sink.until_reported("succeeded!")
            assert not running.done()
            running.cancel()
            await asyncio.wait({running})

    @pytest.mark.promise("workflow.never-false-done")
    @pytest.mark.parametrize(
        "data",
        [
            None,
            [],
            {"resultData": 1},
            {"resultData": {"lastNodeExecuted": {}, "runData": []}},
            {"resultData": {"lastNodeExecuted": "A", "runData": {"A": 1}}},
        ],
    )
    async def test_a_success_without_a_result_that_can_be_read_is_lost(self, data: Any) -> None:
        def respond(asked: RecordedRequest) -> bytes:
            if _is_api(asked):
                return _json({"id": "1", "status": "success", "data": data})
            return _json({"executionId": "1"})

        async with hostile(respond, api_key=KEY, workflows={"tool": ASYNC}) as (_, harness):
            call = await harness.call("tool", job_id=JOB_ID)
            error = await harness.ended(harness.adapter.execute(call, RecordingSink()))
        assert isinstance(error, ToolError)
        assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "RESULT_UNCLEAR")


class TestHostileWorkflows:
    async def _found(self, *rows: Any, **page: Any) -> Any:
        def respond(asked: RecordedRequest) -> bytes:
            if "/workflows/" in asked.target:
                return _json({"message": "Not Found"}, 404)
            return _json({"data": list(rows), "nextCursor": None, **page})

        async with hostile(respond, api_key=KEY, workflows={}, discover=N8nDiscovery()) as (_, harness):
            return await harness.discover()

    @pytest.mark.parametrize("path", ["../rest/login", "a/../../rest", "a b", "a?b", ":id", "", 5, "x" * 600, "ü"])
    async def test_a_webhook_elsewhere_is_not_offered(self, path: Any) -> None:
        found = await self._found(_row("w", path=path))
        assert not found.definitions

    @pytest.mark.parametrize("row", [None, 1, [], {}, {"id": "1", "active": True, "nodes": 3}, {"id": "../x"}])
    async def test_an_invalid_workflow_is_left_out(self, row: Any) -> None:
        found = await self._found(row, _row("w"))
        assert [made.spec.resource_id for made in found.definitions] == ["w"]

    async def test_names_cannot_get_out_of_the_namespace(self) -> None:
        found = await self._found(_row("../../core/fs.readText"), _row("a/b\u202e"), _row("x" * 300))
        assert found.definitions
        for made in found.definitions:
            assert made.spec.name.startswith("flows/")
            assert made.spec.name.isascii()
            assert made.spec.name.count("/") == 1

    async def test_a_list_that_leads_in_circles_is_left(self) -> None:
        found = await self._found(_row("w"), nextCursor="again")
        assert "loop" in found.problems[0]

    async def test_a_list_without_end_is_left(self) -> None:
        cursors = iter(range(1_000_000))
        asked_for: list[int] = []

        def respond(asked: RecordedRequest) -> bytes:
            asked_for.append(1)
            return _json({"data": [], "nextCursor": str(next(cursors))})

        async with hostile(respond, api_key=KEY, workflows={}, discover=N8nDiscovery()) as (_, harness):
            assert "the rest was not read" in (await harness.discover()).problems[0]
        assert len(asked_for) == 50

    async def test_a_discovered_workflow_cannot_take_the_place_of_a_configured_one(self) -> None:
        def respond(asked: RecordedRequest) -> bytes:
            return _json({"data": [_row("tool", path="evil")], "nextCursor": None})

        async with hostile(respond, api_key=KEY, discover=N8nDiscovery()) as (raw, harness):
            found = await harness.discover()
            assert [(made.spec.name, made.is_operators) for made in found.definitions] == [("flows/tool", True)]
            raw.asked.clear()
            await harness.run("tool")
        assert {asked.target for asked in raw.asked if not _is_api(asked)} == {"/webhook/tool"}


class TestSecrets:
    @pytest.mark.promise("n8n.webhook-secret")
    async def test_the_key_of_the_api_never_goes_to_a_webhook_nor_its_headers_to_the_api(self) -> None:
        terms = {"tool": replace(SYNC, headers={"x-hub-token": "hook-secret"})}
        async with hostile(lambda _: _json({}), api_key=KEY, workflows=terms) as (raw, harness):
            await harness.run("tool")
        assert {_is_api(asked) for asked in raw.asked} == {True, False}
        for asked in raw.asked:
            assert (KEY in asked.headers.values()) is _is_api(asked)
            assert ("hook-secret" in asked.headers.values()) is not _is_api(asked)

    async def test_arguments_never_become_headers(self) -> None:
        async with hostile(lambda _: _json({})) as (raw, harness):
            assert isinstance(await harness.run("tool", {"x-evil: 1\r\nHost": "a\r\nb"}), Outcome)
        assert "x-evil" not in raw.asked[0].headers


class TestConfiguration:
    @pytest.mark.parametrize("value", ["a\r\nx: y", "ü", "a\nb"])
    def test_a_header_that_would_break_out_is_refused(self, value: str) -> None:
        with pytest.raises(ValueError, match="headers"):
            request_headers({"x-token": value})

    @pytest.mark.parametrize("name", ["Host", "Content-Length", "Transfer-Encoding", "X-Forwarded-For"])
    def test_a_header_that_frames_or_misleads_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="headers"):
            request_headers({name: "x"})

    @pytest.mark.parametrize("path", ["/a/../b", "/..", "/a?b", "/a#b", "/a\\b", "/%2e%2e"])
    def test_a_path_that_leads_elsewhere_is_refused(self, path: str) -> None:
        with pytest.raises(ValueError, match="not a plain path"):
            plain_path(path, "api_path")

    @pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x", "http://x/?a=b", "http://x/#a", "//x"])
    def test_a_url_that_is_no_base_is_refused(self, url: str) -> None:
        with pytest.raises(ValueError, match="url"):
            base_url(url, SourceValues(Redactor()))

    def test_a_url_with_credentials_is_refused(self) -> None:
        with pytest.raises(ToolFailure, match="INVALID_INPUT"):
            N8nClient("http://user:pass@127.0.0.1", N8nSource(), SystemResolver())

    async def test_a_metadata_service_is_not_dialled(self) -> None:
        client = N8nClient("http://169.254.169.254", N8nSource(), SystemResolver())
        with pytest.raises(ToolFailure, match="HTTP_DISALLOWED_HOST"):
            await client.send("GET", "http://169.254.169.254/latest")


def _row(name: str, *, path: Any = "w") -> dict[str, Any]:
    node = {
        "type": "n8n-nodes-base.webhook",
        "name": "Webhook",
        "parameters": {"httpMethod": "POST", "path": path, "responseMode": "lastNode"},
    }
    return {"id": "w1", "name": name, "active": True, "nodes": [node], "connections": {}, "tags": []}


async def _nothing(_: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
    writer.write(response(b"{}"))
    return False
