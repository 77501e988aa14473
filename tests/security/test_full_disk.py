"""A real file system of a few megabytes, filled by one caller: what is refused, what goes on, and what heals.

The threat: one caller stores until the disk is full, and everybody stops, because the audit log has no space left.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.hub import RunningHub, running_hub
from tests.missing import give_up
from tests.rpc.principals import BY_KEY, Client, Principals
from tests.rpc.statuses import failed
from toolhub.v1 import artifact_service_pb2, artifact_service_pb2_grpc, error_pb2, result_pb2
from toolhub_service.domain.errors.kinds import ErrorKind

DISK: Final = "128m"
POLICY: Final = """
extends: none
grants:
  - principals: ["*"]
    capabilities: [read:fs, write:fs, execute:command, read:memory, write:memory, danger:destructive]
commands:
  - name: split
    path: /usr/bin/split
    positionals: ".*"
    flags: [{flag: "-b", value: ".*"}, {flag: "-a", value: ".*"}]
  - {name: wc, path: /usr/bin/wc, positionals: ".*", positionals_are_paths: true}
destructive_requires_plan: false
"""
WRITE, READ, DELETE, NOW = "core/fs.writeText", "core/fs.readText", "core/fs.deletePath", "core/util.time.now"
FULL = error_pb2.ERROR_KIND_BUDGET_EXCEEDED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own."""
    if os.geteuid() != 0:
        give_up("mounting a small file system needs root: run this file as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("this machine lets root mount no tmpfs: run this file where mount(2) is allowed")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


class FullDisk:
    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self._people = Principals(hub, names=("greedy", "modest"))
        self.greedy, self.modest = (self._people.at(hub, name) for name in ("greedy", "modest"))

    async def upload(self, who: Client, size_bytes: int) -> Any:
        async def parts() -> AsyncIterator[Any]:
            header = artifact_service_pb2.ArtifactHeader(name="a.bin", size_bytes=size_bytes)
            yield artifact_service_pb2.WriteArtifactRequest(header=header)
            for at in range(0, size_bytes, 65_536):
                chunk = os.urandom(min(65_536, size_bytes - at))
                yield artifact_service_pb2.WriteArtifactRequest(chunk=chunk)

        stub = artifact_service_pb2_grpc.ArtifactServiceStub(self.hub.channel)
        return await stub.WriteArtifact(parts(), metadata=who.metadata, timeout=60.0)

    async def heals(self, tool: str, args: Mapping[str, Any], who: Client | None = None) -> None:
        """Call until it succeeds: the audit log tries again each second."""
        for pause in itertools.repeat(0.05):
            answer = await (who or self.modest).call(tool, args, request_id="work")
            if answer.ok:
                return
            assert answer.error.details["component"] == "audit", answer.error
            await asyncio.sleep(pause)

    async def fill(self, who: Client, size_bytes: int = 500_000) -> result_pb2.ToolResult:
        """Write files until one is refused; return that answer."""
        for number in range(500):
            answer = await write(who, f"{number}.txt", size_bytes)
            if not answer.ok:
                return answer
        raise AssertionError("nothing was refused")


async def write(who: Client, path: str, size_bytes: int) -> result_pb2.ToolResult:
    return await who.call(WRITE, {"path": path, "text": "x" * size_bytes}, request_id="work")


@asynccontextmanager
async def hub_on(disk: Path, **settings: Any) -> AsyncIterator[FullDisk]:
    async with running_hub(disk, policy=POLICY, settings={**BY_KEY, **settings}) as hub:
        yield FullDisk(hub)


@pytest.mark.promise("storage.reserve")
async def test_one_caller_cannot_fill_the_disk_for_the_others(small_disk: Path) -> None:
    """Default settings: nobody has configured a bound that fits this disk."""
    async with hub_on(small_disk) as disk:
        await write(disk.modest, "mine.txt", 1_000)
        refused = (await disk.fill(disk.greedy)).error
        assert refused.kind == FULL
        assert refused.details["limit"] == "storage.share"
        assert refused.details["cause"] == "DISK_SHARE"
        assert (await write(disk.modest, "more.txt", 1_000_000)).ok
        assert (await disk.modest.call("core/memory.write", {"text": "still remembered"})).ok
        await disk.upload(disk.modest, 500_000)


@pytest.mark.promise("storage.reserve")
async def test_below_the_reserve_reads_go_on_and_every_kind_of_storing_is_refused_alike(small_disk: Path) -> None:
    async with hub_on(small_disk) as disk:
        await write(disk.modest, "mine.txt", 1_000)
        kept = await disk.upload(disk.modest, 1_000)
        filler = small_disk / "filler"  # as another program on the same disk does
        fill_to(filler, small_disk, left_bytes=100_000)
        await disk.hub.hub.storage.watch.round()  # as it does by itself twice a second
        refusals = [
            (await write(disk.modest, "more.txt", 10)).error,
            (await disk.modest.call("core/memory.write", {"text": "more"})).error,
            (
                await disk.modest.call("core/fs.copy", {"source": "mine.txt", "destination": "b"}, request_id="work")
            ).error,
        ]
        for refusal in refusals:
            assert (refusal.kind, refusal.retryable) == (FULL, False)
            assert refusal.details["limit"] == "storage.reserve_bytes"
            assert refusal.details["cause"] == "DISK_FULL"
            assert "reading and deleting still work" in refusal.message
        assert len({refusal.message for refusal in refusals}) == 1
        artifact = await failed(disk.upload(disk.modest, 1_000))
        assert (artifact.code, artifact.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        assert artifact.metadata["cause"] == "DISK_FULL"
        job = await failed(disk.modest.submit(NOW, {}))
        assert (job.code, job.metadata["limit"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "storage.reserve_bytes")
        # Reads go on, each with its event in the audit log.
        assert (await disk.modest.call(READ, {"path": "mine.txt"}, request_id="work")).ok
        assert (await disk.modest.call("core/exec.run", {"argv": ["wc", "mine.txt"]}, request_id="work")).ok
        times = await asyncio.gather(*(disk.modest.call(NOW) for _ in range(100)))
        assert all(each.ok for each in times)
        stub = artifact_service_pb2_grpc.ArtifactServiceStub(disk.hub.channel)
        asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=kept.artifact.artifact_id)
        read = [each async for each in stub.ReadArtifact(asked, metadata=disk.modest.metadata)]
        assert sum(len(each.chunk) for each in read) == 1_000
        # Deleting is how a caller makes room, and no restart is needed.
        assert (await disk.modest.call(DELETE, {"path": "mine.txt", "confirm": True}, request_id="work")).ok
        filler.unlink()
        assert (await write(disk.modest, "more.txt", 10)).ok
        assert disk.hub.hub.audit.is_well
        assert (await disk.hub.hub.audit.verify()).ok


async def test_a_program_is_ended_before_the_reserve_is_gone(small_disk: Path) -> None:
    """It writes so much that it ends within the reserve, and leaves the audit log its part, at any speed."""
    async with hub_on(small_disk) as disk:
        assert (await write(disk.greedy, "input", 10)).ok
        await disk.hub.hub.storage.watch.round()  # the hub takes its part of the reserve
        (given,) = (small_disk / "hub" / "workspaces").glob("*/work/input")
        given.write_bytes(bytes(20_000_000))
        free_bytes, _ = disk.hub.hub.storage.rooms.workspaces.measure()
        status = os.statvfs(small_disk)
        held_bytes = free_bytes - status.f_bavail * status.f_frsize
        fill_to(small_disk / "filler", small_disk, left_bytes=31_000_000 - held_bytes)
        greedy = {"argv": ["split", "-b", "200000", "-a", "6", "input", "part"], "timeoutS": 60}
        ended = (await disk.greedy.call("core/exec.run", greedy, request_id="work", timeout_s=120.0)).error
        assert ended.kind == FULL, ended.message
        assert "The program" in ended.message
        # What is left of the reserve is the audit log's.
        await disk.heals(NOW, {})
        assert (await disk.greedy.call("core/fs.listDir", {"path": "."}, request_id="work")).ok
        await disk.heals(DELETE, {"path": "partaaaaaa", "confirm": True}, who=disk.greedy)


async def test_a_disk_filled_to_the_last_byte_crashes_nothing_and_heals_by_itself(small_disk: Path) -> None:
    """No reserve: ENOSPC itself, from whatever writes."""
    async with hub_on(small_disk, storage={"reserve_bytes": 0}) as disk:
        await write(disk.modest, "mine.txt", 1_000)
        assert (await disk.modest.call(READ, {"path": "mine.txt"}, request_id="work")).ok
        filler = small_disk / "filler"
        fill_to(filler, small_disk, left_bytes=0)
        refused = (await write(disk.modest, "more.txt", 300_000)).error
        assert refused.kind in (FULL, error_pb2.ERROR_KIND_IO_ERROR)  # or the audit log, which needs space first
        for _ in range(50):
            answer = await disk.modest.call(READ, {"path": "mine.txt"}, request_id="work")
            assert answer.ok or answer.error.details["component"] == "audit"
        filler.unlink()
        await disk.heals(WRITE, {"path": "healed.txt", "text": "x"})
        assert (await disk.hub.hub.audit.verify()).ok
        events = await disk.hub.events(principal="modest")
        assert {READ, WRITE} <= {each.event.tool for each in events}


async def test_enospc_of_a_write_is_the_same_refusal_as_the_reserve(small_disk: Path, tmp_path: Path) -> None:
    """The workspaces have a disk of their own, without a reserve."""
    settings = {"storage": {"reserve_bytes": 0}, "workspace": {"root": str(small_disk / "workspaces")}}
    async with hub_on(tmp_path / "data", **settings) as disk:
        fill_to(small_disk / "filler", small_disk, left_bytes=0)
        refused = (await write(disk.modest, "more.txt", 300_000)).error
        assert refused.kind == FULL
        assert refused.details["cause"] in ("DISK_FULL", "DISK_SHARE")
        assert ErrorKind.BUDGET_EXCEEDED.value == "BUDGET_EXCEEDED"
        assert (await disk.modest.call(NOW)).ok
        (small_disk / "filler").unlink()
        assert (await write(disk.modest, "more.txt", 300_000)).ok


def fill_to(file: Path, disk: Path, *, left_bytes: int) -> None:
    """Fill the disk until so many bytes are left."""
    status = os.statvfs(disk)
    size_bytes = status.f_bavail * status.f_frsize - left_bytes
    with file.open("wb") as filler:
        try:
            while size_bytes > 0:
                size_bytes -= filler.write(bytes(min(size_bytes, 65_536)))
            filler.flush()
        except OSError:
            return  # full to the last byte, which is what was asked for
