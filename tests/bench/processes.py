"""Processes under load: start, processor time, memory, and how much of the machine other processes took."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_TIMEOUT_S = 30.0
_SERVING = re.compile(r"(?:serving on \S*:|^port )(\d+)")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    port: int
    start_s: float
    """Seconds from spawn to its port being served."""

    def cpu_s(self) -> float:
        """User and system seconds so far, those of its workers included."""
        return _cpu_s(self.pid) + sum(self.workers_cpu_s().values())

    def workers_cpu_s(self) -> dict[int, float]:
        """The same of each process that it has started and that runs now, by its id."""
        pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {int(pid): _cpu_s(int(pid)) for pid in pids}

    def resident_mb(self) -> float:
        """0 once it has ended."""
        found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextmanager
def running(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[Process]:
    """A Python module as a process that says `port N` or `serving on host:N` once it serves."""
    began = time.monotonic()
    command = [python, "-m", module, *arguments]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **(environment or {})}
    )
    try:
        yield Process(child.pid, _port(child, began), time.monotonic() - began)
    finally:
        child.terminate()
        try:
            child.wait(timeout=15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _port(child: subprocess.Popen[str], began: float) -> int:
    assert child.stdout is not None
    for line in child.stdout:
        if found := _SERVING.search(line):
            return int(found[1])
        if time.monotonic() - began > _START_TIMEOUT_S:
            break
    raise RuntimeError(f"process {child.pid} did not start")


def stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Share of the machine's time that its host gave to others between two `machine_ticks()`."""
    total = after[0] - before[0]
    return (after[1] - before[1]) / total if total else 0.0


def machine_ticks() -> tuple[int, int]:
    """(all ticks, stolen ticks) since boot; all zero where there is no /proc/stat."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields[:8]), fields[7]
