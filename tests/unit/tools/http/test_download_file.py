from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_server import always, response, serving, silent_after
from tests.fakes.resolvers import FixedResolver
from tests.fakes.tool_context import RecordingSink, egress_context
from tests.overtaken import overtaken
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.egress.client import EgressClient
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.guards.secrets import Redactor
from toolhub_service.tools.http.exchange import HttpServices
from toolhub_service.tools.http.tools import HttpDownloadFile


@pytest.fixture
async def tool() -> AsyncIterator[HttpDownloadFile]:
    client = EgressClient(GuardedTransport(FixedResolver()))
    yield HttpDownloadFile(HttpServices(client, Redactor()))
    await client.aclose()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def failed(tool: HttpDownloadFile, folder: Path, raw: bytes, *, timeout_s: float = 5.0, **args: Any) -> ToolError:
    async with serving(always(raw, keep=False)) as server:
        context = egress_context(server.rule(), folder=folder, timeout_s=timeout_s)
        wanted = tool.In(url=server.url(), **({"dest_path": "f"} | args))
        with pytest.raises(ToolFailure) as caught:
            await tool.run(wanted, context)
        context.close()
    return caught.value.error


async def test_file_is_written_whole_hashed_and_proven(tool: HttpDownloadFile, tmp_path: Path) -> None:
    body, sink = os.urandom(3_000_000), RecordingSink()
    async with serving(always(response(body))) as server:
        context = egress_context(server.rule(), folder=tmp_path, sink=sink)
        out = await tool.run(tool.In(url=server.url("/x?token=canary"), dest_path="a/b.bin"), context)
        await asyncio.sleep(0)
        context.close()
        assert server.asked[0].headers["accept-encoding"] == "identity"
    sha256 = hashlib.sha256(body).hexdigest()
    assert (out.dest_path, out.bytes, out.sha256) == ("a/b.bin", len(body), sha256)
    assert (tmp_path / "a/b.bin").read_bytes() == body
    assert [evidence.type for evidence in context.evidence] == [EvidenceType.URL, EvidenceType.FILE]
    assert {evidence.sha256 for evidence in context.evidence} == {sha256}
    assert "canary" not in repr(context.evidence)
    assert sink.reports[-1].step == len(body)
    assert sink.reports[-1].unit == "bytes"


async def test_encoded_file_is_stored_decoded(tool: HttpDownloadFile, tmp_path: Path) -> None:
    async with serving(always(response(gzip.compress(b"hello"), content_encoding="gzip"))) as server:
        context = egress_context(server.rule(), folder=tmp_path)
        await tool.run(tool.In(url=server.url(), dest_path="f"), context)
        context.close()
    assert (tmp_path / "f").read_bytes() == b"hello"


@pytest.mark.promise("fs.partial-downloads-vanish")
@pytest.mark.parametrize(
    ("raw", "args", "kind"),
    [
        (response(b"no", status=404), {}, ErrorKind.UPSTREAM_ERROR),
        (response(b"x" * 5_000), {"max_bytes": 1_024}, ErrorKind.HTTP_TOO_LARGE),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000, {"max_bytes": 1_024}, ErrorKind.HTTP_TOO_LARGE),
        (
            response(gzip.compress(b"x" * 5_000), content_encoding="gzip"),
            {"max_bytes": 1_024},
            ErrorKind.HTTP_TOO_LARGE,
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", {}, ErrorKind.NETWORK_ERROR),
        (response(b"x"), {"dest_path": "../f"}, ErrorKind.PATH_OUTSIDE_SANDBOX),
        (response(b"x"), {"dest_path": "/etc/f"}, ErrorKind.PATH_OUTSIDE_SANDBOX),
    ],
)
async def test_failed_download_leaves_nothing(
    tool: HttpDownloadFile, tmp_path: Path, raw: bytes, args: dict[str, Any], kind: ErrorKind
) -> None:
    assert (await failed(tool, tmp_path, raw, **args)).kind is kind
    assert names_in(tmp_path) == []


async def test_standing_file_is_kept_unless_overwrite_is_asked_and_allowed(
    tool: HttpDownloadFile, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"old")
    async with serving(always(response(b"new"))) as server:
        for overwrite, sandbox, kind in (
            (False, Sandbox(), ErrorKind.ALREADY_EXISTS),
            (True, Sandbox(may_overwrite=False), ErrorKind.POLICY_DENIED),
        ):
            context = egress_context(server.rule(), folder=tmp_path, sandbox=sandbox)
            with pytest.raises(ToolFailure) as caught:
                await tool.run(tool.In(url=server.url(), dest_path="f", overwrite=overwrite), context)
            assert caught.value.error.kind is kind
            context.close()
        assert server.connections == 0
        assert (tmp_path / "f").read_bytes() == b"old"
        context = egress_context(server.rule(), folder=tmp_path)
        await tool.run(tool.In(url=server.url(), dest_path="f", overwrite=True), context)
        context.close()
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.promise("fs.partial-downloads-vanish")
async def test_timed_out_and_cancelled_downloads_leave_nothing(tool: HttpDownloadFile, tmp_path: Path) -> None:
    async with serving(silent_after(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")) as server:

        async def late(timeout_s: float) -> None:
            context = egress_context(server.rule(), folder=tmp_path, timeout_s=timeout_s)
            with pytest.raises(ToolFailure) as caught:
                await tool.run(tool.In(url=server.url(), dest_path="f"), context)
            assert caught.value.error.kind is ErrorKind.HTTP_TIMEOUT

        await overtaken(late, lambda _: server.arrived.is_set())
        await asyncio.wait_for(server.gone.wait(), 60)
        server.gone.clear()
        server.arrived.clear()
        context = egress_context(server.rule(), folder=tmp_path)
        call = asyncio.create_task(tool.run(tool.In(url=server.url(), dest_path="f"), context))
        await asyncio.wait_for(server.arrived.wait(), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.gone.wait(), 60)
        context.close()
    assert names_in(tmp_path) == []
