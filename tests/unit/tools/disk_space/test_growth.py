"""What a program writes while it runs: when it is ended, and when it goes on."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.tools.disk_space.disk_room import DiskRoom
from toolhub_service.tools.disk_space.growth import Growth, growth_of_run

MIB = 1024 * 1024


class ScriptedRoom(DiskRoom):
    short = False

    @property
    def is_short(self) -> bool:
        return self.short


@dataclass
class GrowingFolder:
    room: ScriptedRoom = field(default_factory=lambda: ScriptedRoom("/", 0))
    used_bytes: int = 0
    measured: int = 0
    signals: list[signal.Signals] = field(default_factory=list)
    went_on: asyncio.Event = field(default_factory=asyncio.Event)

    def signalled(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if self.signals.count(signal.SIGCONT) == 2:
            self.went_on.set()

    def measure(self) -> int:
        self.measured += 1
        return self.used_bytes

    def growth(self, *, began_bytes: int = 0) -> Growth:
        return Growth(
            self.measure,
            self.room,
            began_bytes=began_bytes,
            max_bytes=10 * MIB,
            refusal=lambda used: refuse(ErrorKind.BUDGET_EXCEEDED, f"It uses {used}.", limit="a.limit"),
        )


async def test_a_program_beyond_the_bound_is_ended_with_the_reason() -> None:
    folder = GrowingFolder(used_bytes=11 * MIB)
    growth = folder.growth()
    await asyncio.wait_for(growth.watch(folder.signals.append), 60)
    failure = await growth.find_failure()
    assert failure is not None
    assert failure.error.details == {"limit": "a.limit"}
    assert failure.error.message.startswith("The program was killed. It uses 11534336.")


async def test_a_program_that_writes_while_the_disk_is_short_is_stopped_measured_and_ended() -> None:
    folder = GrowingFolder(used_bytes=1 * MIB)
    folder.room.short = True
    growth = folder.growth()
    await asyncio.wait_for(growth.watch(folder.signals.append), 60)
    assert folder.signals == [signal.SIGSTOP]
    failure = await growth.find_failure()
    assert failure is not None
    assert failure.error.details["cause"] == "DISK_FULL"


async def test_a_program_that_only_reads_goes_on_while_the_disk_is_short() -> None:
    folder = GrowingFolder(used_bytes=20 * MIB)
    folder.room.short = True
    growth = folder.growth(began_bytes=20 * MIB)
    watching = asyncio.create_task(growth.watch(folder.signalled))
    await asyncio.wait_for(folder.went_on.wait(), 60)
    assert not watching.done()
    assert folder.signals[:4] == [signal.SIGSTOP, signal.SIGCONT] * 2
    watching.cancel()
    assert await growth.find_failure() is None


async def test_a_short_program_is_not_measured() -> None:
    folder = GrowingFolder()
    assert await folder.growth().find_failure() is None
    assert folder.measured == 0


async def test_a_program_that_ended_because_nothing_was_left_has_failed() -> None:
    folder = GrowingFolder(used_bytes=1 * MIB)
    growth = folder.growth()
    folder.room.short = True
    failure = await growth.find_failure()
    assert failure is not None
    assert failure.error.message.startswith("The program has ended. The hub's disk is full")


async def test_all_folders_of_a_run_count_together(tmp_path: Path) -> None:
    named = [tmp_path / "out", tmp_path / "tmp"]
    for folder in named:
        folder.mkdir()
        (folder / "file").write_bytes(b"x" * MIB)
    growth = growth_of_run([*map(str, named)], ScriptedRoom("/", 0), max_bytes=MIB + 64 * 1024)
    await asyncio.wait_for(growth.watch(lambda _: None), 60)
    failure = await growth.find_failure()
    assert failure is not None
    assert failure.error.details["limit_bytes"] == MIB + 64 * 1024
