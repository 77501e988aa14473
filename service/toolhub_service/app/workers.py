"""`--workers N`: N processes on one port by SO_REUSEPORT, spawned and never forked (grpc/grpc#31885).

The supervisor starts each worker as a fresh interpreter, starts one that died again, and passes on SIGTERM and SIGHUP.
When one ends before all of them have served, the start has failed. A worker reports on its standard output that it
serves, and stops when its standard input ends: so a killed supervisor leaves no workers behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from toolhub_service.app.config_files.modes import check_files
from toolhub_service.app.listening import host_and_port, listening_of
from toolhub_service.app.start_refusals import StartRefused
from toolhub_service.app.wiring.telemetry import MULTIPROCESS_VARIABLE, metrics_hosts, start_endpoint
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry.counters import make_scrape_registry
from toolhub_service.telemetry.metrics import MetricsEndpoint
from toolhub_service.transport.server import cannot_listen

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
        """`ended` gets the pid of every ended worker; `all_ready` is called once, when all serve."""
        self._command = list(command)
        self._count = count
        self._environment = dict(environment)
        self._ended = ended
        self._all_ready = all_ready
        self._ready: set[int] = set()
        self._has_started = False
        self._start_failed = False
        self._stopping = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}

    def is_serving(self) -> bool:
        """Return whether every worker has served once, and none has been told to stop."""
        return self._has_started and not self._stopping.is_set()

    async def run(self) -> bool:
        """Run until SIGTERM or SIGINT, and then until every worker has drained.

        Return False when a worker could not start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._signal_all, signal.SIGHUP)
        try:
            async with asyncio.TaskGroup() as group:
                for worker in range(self._count):
                    group.create_task(self._keep_running(worker))
        finally:
            self._signal_all(signal.SIGTERM)
        return not self._start_failed

    async def _keep_running(self, worker: int) -> None:
        while not self._stopping.is_set():
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, WORKER_VARIABLE: str(worker)},
                # A worker stops when this end closes, so that none outlives a killed supervisor.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self._running[worker] = process
            if self._stopping.is_set():  # told to stop while it was being started: the signal has not reached it
                process.send_signal(signal.SIGTERM)
            await self._wait_until_ready(worker, process)
            status = await process.wait()
            self._running.pop(worker, None)
            self._ended(process.pid)
            if self._stopping.is_set():
                return
            # A worker that fails before all were ready would fail again: the command ends and reports it instead.
            if self._has_started:
                sys.stderr.write(f"worker {worker} ended with status {status}; starting it again\n")
                # A worker that crashes at once must not be restarted without a pause.
                await self._pause()
            else:
                self._start_failed = True
                self._stop()

    async def _wait_until_ready(self, worker: int, process: asyncio.subprocess.Process) -> None:
        """Wait until the worker writes that it serves, or ends."""
        assert process.stdout is not None
        if await process.stdout.readline() == READY and len(self._ready) < self._count:
            self._ready.add(worker)
            if len(self._ready) == self._count:
                self._has_started = True
                self._all_ready()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), _RESTART_PAUSE_S)
        except TimeoutError:
            return

    def _stop(self) -> None:
        self._stopping.set()
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(number)


def reserve_port(address: str) -> tuple[socket.socket | None, str]:
    """Return a socket that holds the port for the workers (never listening), and the address with that port.

    A port shared by SO_REUSEPORT would be shared with the workers of another hub as well, each under its own policy: so
    the port is first bound exclusively. Raises OSError when it is taken. A Unix socket needs no holding.
    """
    if address.startswith("unix"):
        return None, address
    host, port = host_and_port("server.listen", address)
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what lingers of a hub that left is no hub
            alone.bind(place)
    except OSError as taken:
        raise cannot_listen(address) from taken
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Bound and never listening: it only reserves the port while workers come and go.
    held.bind(place)
    return held, f"{address.rpartition(':')[0]}:{held.getsockname()[1]}"


def worker_number() -> int | None:
    """Return this process's number when it is a worker of a supervisor."""
    text = os.environ.get(WORKER_VARIABLE, "")
    return int(text) if text else None


def supervise(
    settings: Settings, config_file: Path | None, data_dir: Path | None, *, greet: Callable[[int, int], None]
) -> None:
    """Run until SIGTERM. `greet` is called with the port and the metrics port once all workers have been started.

    Raises StartRefused when one cannot start, ListenRefused, FilesLoose, and OSError when the port is taken.
    """
    listening_of(settings)  # refuse here, once, rather than in every worker
    check_files(settings)
    held, address = reserve_port(settings.server.listen)
    try:
        with tempfile.TemporaryDirectory(prefix="toolhub-metrics-") as folder:
            asyncio.run(_supervise(settings, _command(address, config_file, data_dir), address, Path(folder), greet))
    finally:
        if held is not None:
            held.close()


async def _supervise(
    settings: Settings, command: list[str], address: str, folder: Path, greet: Callable[[int, int], None]
) -> None:
    registry = make_scrape_registry(folder)
    endpoint = MetricsEndpoint(registry, metrics_hosts(settings))
    metrics_port = await start_endpoint(endpoint, settings.metrics.listen)
    supervisor = Supervisor(
        command,
        settings.server.workers,
        # Workers are started without `--workers`, and must know that they share port and stores.
        {**os.environ, MULTIPROCESS_VARIABLE: str(folder), "TOOLHUB_SERVER_WORKERS": str(settings.server.workers)},
        ended=lambda pid: mark_process_dead(pid, str(folder)),  # type: ignore[no-untyped-call]  # the library has no types there
        all_ready=lambda: greet(int(address.rpartition(":")[2]) if ":" in address else 0, metrics_port),
    )
    endpoint.is_ready = supervisor.is_serving
    try:
        if not await supervisor.run():
            raise StartRefused("a worker could not start; it says above why.")
    finally:
        await endpoint.stop()


def _command(address: str, config_file: Path | None, data_dir: Path | None) -> list[str]:
    command = [sys.executable, "-m", "toolhub_service", "serve", "--listen", address]
    command += ["--config", str(config_file)] if config_file else []
    command += ["--data-dir", str(data_dir)] if data_dir else []
    return command
