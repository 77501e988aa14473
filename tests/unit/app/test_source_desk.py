"""Refreshing by operators: the file is read as it is now, and its problems are reported to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.rpc.real_servers import write_sources
from tests.rpc.statuses import failed
from tests.unit.app.wiring.test_source_runtime import NOBODY, SCRIPTED, FollowedHub, following
from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import source_pb2


async def refreshed(hub: FollowedHub, *names: str) -> dict[str, source_pb2.SourceStatus]:
    answer = await hub.running.registry.RefreshSources(pb.RefreshSourcesRequest(sources=names))
    return {status.source: status for status in answer.sources}


async def test_refresh_finds_a_source_that_was_just_written(tmp_path: Path) -> None:
    async with following(tmp_path, far=NOBODY) as hub:
        far = hub.opened("far")
        write_sources(tmp_path, {"far": NOBODY, "files": SCRIPTED})
        found = await refreshed(hub, "files")
        assert found["files"].state == source_pb2.SOURCE_STATE_READY
        assert (await hub.running.invoke("files/echo", {"text": "x"})).ok
        assert hub.opened("far") is far


async def test_refresh_reads_the_entry_that_was_just_replaced(tmp_path: Path) -> None:
    async with following(tmp_path, files=NOBODY) as hub:
        assert (await refreshed(hub, "files"))["files"].state == source_pb2.SOURCE_STATE_DOWN
        write_sources(tmp_path, {"files": SCRIPTED})
        assert (await refreshed(hub, "files"))["files"].state == source_pb2.SOURCE_STATE_READY


async def test_refresh_opens_a_source_whose_secret_has_come(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    entry = {**SCRIPTED, "env": {"TOKEN": {"file": str(secret)}}}
    async with following(tmp_path, files=entry) as hub:
        (down,) = (await refreshed(hub, "files")).values()
        assert down.state == source_pb2.SOURCE_STATE_DOWN
        assert str(secret) in down.message
        secret.write_text("a-token-of-some-length\n")
        assert (await refreshed(hub, "files"))["files"].state == source_pb2.SOURCE_STATE_READY


async def test_source_that_cannot_be_opened_is_known_however_many_ask_at_once(tmp_path: Path) -> None:
    entry = {**NOBODY, "headers": {"Authorization": {"file": str(tmp_path / "none")}}}
    async with following(tmp_path, far=entry) as hub:
        answers = await asyncio.gather(*(refreshed(hub, "far") for _ in range(8)))
        assert {answer["far"].state for answer in answers} == {source_pb2.SOURCE_STATE_DOWN}


async def test_invalid_file_is_reported_to_who_asks_for_as_long_as_it_is_invalid(tmp_path: Path) -> None:
    async with following(tmp_path, files=SCRIPTED) as hub:
        files = hub.opened("files")
        write_sources(tmp_path, {"files": {"comand": "x"}})
        for _ in range(2):
            failure = await failed(hub.running.registry.RefreshSources(pb.RefreshSourcesRequest()))
            assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SOURCES_INVALID")
            assert "did you mean `command`?" in failure.message
        assert hub.opened("files") is files
        write_sources(tmp_path, {"files": SCRIPTED})
        assert (await refreshed(hub))["files"].state == source_pb2.SOURCE_STATE_READY


async def test_caller_who_leaves_leaves_no_source_half_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(tmp_path, slow=NOBODY) as hub:
        goes, may_go = asyncio.Event(), asyncio.Event()
        close = hub.sourcing.sources._controllers["slow"].end

        async def slowly() -> None:
            goes.set()
            await may_go.wait()
            await close()

        monkeypatch.setattr(hub.sourcing.sources._controllers["slow"], "end", slowly)
        write_sources(tmp_path, {"other": NOBODY})
        asking = asyncio.create_task(refreshed(hub))
        await goes.wait()
        asking.cancel()
        await asyncio.wait({asking})
        may_go.set()
        assert set(await refreshed(hub, "other")) == {"other"}
