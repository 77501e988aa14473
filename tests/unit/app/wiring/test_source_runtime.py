"""What a hub makes of sources.yaml at its start and of every change to it, one source at no other's cost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hub import RunningHub, running_hub
from tests.rpc.real_servers import POLICY, program, write_sources
from tests.unit.adapters.mcp.links import ROOT
from toolhub.v1 import error_pb2
from toolhub_service.app.serving import follow
from toolhub_service.app.wiring.source_runtime import SourceRuntime
from toolhub_service.domain.source import SourceState, SourceStatus, Trust

SCRIPTED = program(sys.executable, str(ROOT / "tests/fakes/mcp_servers/scripted.py"), "modern")
NOBODY: Mapping[str, Any] = {"url": "http://127.0.0.1:9/mcp"}
"""A source that can be opened and never read."""


class FollowedHub:
    """A hub whose sources.yaml is written by the test."""

    def __init__(self, home: Path, running: RunningHub) -> None:
        self._home = home
        self.running = running

    @property
    def sourcing(self) -> SourceRuntime:
        return self.running.hub.sourcing

    async def write(self, **sources: Mapping[str, Any]) -> None:
        write_sources(self._home, sources)
        await self.sourcing.reload(asked=False)

    async def read(self) -> None:
        assert await self.sourcing.sources.wait_until_tried(timeout_s=60)

    def opened(self, name: str) -> object:
        """Another object each time that it is opened."""
        return self.sourcing.sources._controllers[name]

    def status(self, name: str) -> SourceStatus:
        return next(status for status in self.sourcing.sources.statuses() if status.name == name)

    @property
    def metrics(self) -> str:
        return self.running.hub.observing.metrics.exposition().decode()


@asynccontextmanager
async def following(home: Path, **sources: Mapping[str, Any]) -> AsyncIterator[FollowedHub]:
    write_sources(home, sources)
    async with running_hub(home, policy=POLICY) as running:
        yield FollowedHub(home, running)


async def test_changed_source_is_opened_anew_and_unchanged_one_is_left_alone(tmp_path: Path) -> None:
    async with following(tmp_path, same=NOBODY, other=NOBODY, gone=NOBODY) as hub:
        same, other = hub.opened("same"), hub.opened("other")
        await hub.write(same=NOBODY, other={**NOBODY, "timeout_s": 5}, come=NOBODY)
        assert hub.opened("same") is same
        assert hub.opened("other") is not other
        names = [status.name for status in hub.sourcing.sources.statuses()]
        assert names == ["core", "come", "other", "same"]
        await hub.sourcing.reload(asked=True)
        assert hub.opened("same") is same


async def test_invalid_file_keeps_the_sources_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with following(tmp_path, files=NOBODY) as hub:
        files = hub.opened("files")
        await hub.write(files={"comand": "x"})
        assert hub.opened("files") is files
        logged = [line for line in capsys.readouterr().err.splitlines() if "sources_rejected" in line]
        assert len(logged) == 1
        assert "did you mean `command`?" in logged[0]
        await hub.sourcing.reload(asked=False)
        assert "sources_rejected" not in capsys.readouterr().err
        await hub.write(other=NOBODY)
        assert hub.status("other").state is not SourceState.DISABLED


async def test_a_source_whose_secret_is_missing_is_down_with_the_reason_until_it_is_refreshed(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    entry = {**NOBODY, "headers": {"Authorization": {"file": str(secret)}}, "trust": "approval"}
    async with following(tmp_path, far=entry, near=NOBODY) as hub:
        far, near = hub.status("far"), hub.opened("near")
        assert (far.state, far.trust, far.endpoint) == (SourceState.DOWN, Trust.APPROVAL, NOBODY["url"])
        assert far.reason.startswith(f"the file {secret} cannot be read: No such file or directory; it is looked at")
        assert 'toolhub_source_up{source="far"} 0.0' in hub.metrics
        secret.write_text("a-token-of-some-length\n")
        await hub.sourcing.reload(asked=False)
        assert hub.status("far").reason == far.reason
        await hub.sourcing.reload(asked=True)
        assert str(secret) not in hub.status("far").reason
        assert hub.opened("near") is near


async def test_a_source_is_opened_anew_on_request_after_its_secret_or_certificate_was_replaced(
    tmp_path: Path,
) -> None:
    secret, authority = tmp_path / "token", tmp_path / "ca.pem"
    secret.write_text("the-first-token")
    entry = {**NOBODY, "headers": {"Authorization": {"file": str(secret), "prefix": "Bearer "}}}
    async with following(tmp_path, rotated=entry, certified={**NOBODY, "tls": {"ca_file": str(authority)}}) as hub:
        rotated = hub.opened("rotated")
        await hub.sourcing.reload(asked=True)
        assert hub.opened("rotated") is rotated
        secret.write_text("the-second-token")
        await hub.sourcing.reload(asked=True)
        assert hub.opened("rotated") is not rotated
        certified = hub.opened("certified")
        authority.write_text("made since")
        await hub.sourcing.reload(asked=True)
        assert hub.opened("certified") is not certified


@pytest.mark.parametrize("kind", ["mcp", "langchain"])
async def test_extra_that_is_not_installed_is_reported_and_its_source_alone_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, f"toolhub_service.adapters.{kind}.adapter", None)
    entries = {"mcp": NOBODY, "langchain": {"kind": "langchain", "load": ["tests.none:it"]}}
    async with following(tmp_path, bare=entries[kind]) as hub:
        assert hub.status("bare").state is SourceState.DOWN
        assert f"toolhub extras install {kind}" in hub.status("bare").reason
        assert (await hub.running.invoke("core/util.time.now")).ok


async def test_source_that_is_switched_off_is_known_and_neither_read_nor_measured(tmp_path: Path) -> None:
    async with following(tmp_path, files={**SCRIPTED, "enabled": False}) as hub:
        assert hub.status("files").state is SourceState.DISABLED
        assert "source=" not in hub.metrics
        await hub.write(files=SCRIPTED)
        await hub.read()
        assert (await hub.running.invoke("files/echo", {"text": "x"})).ok
        assert 'toolhub_source_up{source="files"} 1.0' in hub.metrics
        await hub.write(files={**SCRIPTED, "enabled": False})
        gone = await hub.running.invoke("files/echo", {"text": "x"})
        assert gone.error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND
        assert 'toolhub_source_up{source="files"}' not in hub.metrics


async def test_nothing_of_a_removed_source_is_shown_or_binds_its_successor_of_that_name(
    tmp_path: Path,
) -> None:
    budgets = {**SCRIPTED, "max_concurrency": 1}
    async with following(tmp_path, files=budgets) as hub:
        await hub.read()
        assert (await hub.running.invoke("files/echo", {"text": "x"})).ok
        assert hub.status("files").breaker == "CLOSED"
        await hub.write()
        assert "mcp:files" not in dict(hub.running.hub.budgets.breaker_states())
        assert 'toolhub_source_tools{source="files"}' not in hub.metrics
        await hub.write(files={**budgets, "max_concurrency": 2})
        await hub.read()
        hanging = [asyncio.create_task(hub.running.invoke("files/hangs", timeout_s=20)) for _ in range(2)]
        async with asyncio.timeout(60):
            while hub.running.hub.budgets.in_flight("mcp:files") < 2:  # noqa: ASYNC110 - budgets have no event
                await asyncio.sleep(0)
        for call in hanging:
            call.cancel()
        await asyncio.wait(hanging)


async def test_revoked_keys_do_not_wait_for_a_source_that_takes_its_time_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path, slow=NOBODY) as hub:
        goes, may_go, looks = asyncio.Event(), asyncio.Event(), asyncio.Queue[None]()

        async def remove(name: str, *, forget: bool = False) -> None:
            goes.set()
            await may_go.wait()

        monkeypatch.setattr(hub.sourcing.sources, "remove", remove)
        monkeypatch.setattr("toolhub_service.app.serving.reload_keys", lambda *_: looks.put_nowait(None))
        reload = asyncio.Event()
        follower = asyncio.create_task(follow(hub.running.hub, reload))
        write_sources(tmp_path, {})
        async with asyncio.timeout(60):
            reload.set()
            await goes.wait()
            while not looks.empty():
                looks.get_nowait()
            reload.set()
            await looks.get()
            follower.cancel()
            may_go.set()
            await asyncio.wait({follower})
        assert not hub.sourcing._entries
