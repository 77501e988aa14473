"""`--workers N`: N processes on one port by SO_REUSEPORT, spawned and never forked (grpc/grpc#31885).

The supervisor starts each worker as a fresh interpreter, starts one that died again, and passes on SIGTERM and SIGHUP.
A worker says on its standard output that it serves, and leaves when its standard input ends: a supervisor that was
killed leaves no workers behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

WORKER_VARIABLE = "TOOLHUB_WORKER"
READY = b"ready\n"
_RESTART_PAUSE_S = 1.0


class Supervisor:
    """Runs `command` N times, each with TOOLHUB_WORKER set to its number."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        environment: Mapping[str, str],
        *,
        ended: Callable[[int], None],
        all_ready: Callable[[], None],
    ) -> None:
        """`ended` gets the pid of every worker that is gone; `all_ready` is called once, when all serve."""
        self._command = list(command)
        self._count = count
        self._environment = dict(environment)
        self._ended = ended
        self._all_ready = all_ready
        self._ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}

    async def run(self) -> None:
        """Until SIGTERM or SIGINT, and then until every worker has drained."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        try:
            async with asyncio.TaskGroup() as group:
                for worker in range(self._count):
                    group.create_task(self._keep_running(worker))
        finally:
            self._pass_on(signal.SIGTERM)

    async def _keep_running(self, worker: int) -> None:
        while not self._stopping.is_set():
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, WORKER_VARIABLE: str(worker)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self._running[worker] = process
            await self._hear(worker, process)
            status = await process.wait()
            self._running.pop(worker, None)
            self._ended(process.pid)
            if not self._stopping.is_set():
                sys.stderr.write(f"worker {worker} ended with status {status}; starting it again\n")
                await self._pause()

    async def _hear(self, worker: int, process: asyncio.subprocess.Process) -> None:
        """Wait for the worker's word that it serves; none comes from one that dies first."""
        assert process.stdout is not None
        if await process.stdout.readline() == READY and len(self._ready) < self._count:
            self._ready.add(worker)
            if len(self._ready) == self._count:
                self._all_ready()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), _RESTART_PAUSE_S)
        except TimeoutError:
            return

    def _stop(self) -> None:
        self._stopping.set()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(number)


def reserve_port(address: str) -> tuple[socket.socket | None, str]:
    """For port 0: a socket that holds a free port (never listening), and the address with that port."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix") or port != "0":
        return None, address
    family = socket.AF_INET6 if ":" in host.strip("[]") else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((host.strip("[]"), 0))
    return held, f"{host}:{held.getsockname()[1]}"


def worker_number() -> int | None:
    """This process's number when it is a worker of a supervisor."""
    text = os.environ.get(WORKER_VARIABLE, "")
    return int(text) if text else None
