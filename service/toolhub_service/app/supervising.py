"""The supervising process of `--workers N`: reserves the port, starts the workers, serves the metrics of them all."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from toolhub_service.app.file_modes import check_files
from toolhub_service.app.listening import listening_of
from toolhub_service.app.observing import MULTIPROCESS_VARIABLE, metrics_hosts, start_endpoint
from toolhub_service.app.workers import Supervisor, reserve_port
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry.metrics_http import MetricsEndpoint


def supervise(
    settings: Settings, config_file: Path | None, data_dir: Path | None, *, greet: Callable[[int, int], None]
) -> None:
    """Until SIGTERM. `greet` is told the port and the metrics port once all workers have been started.

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
    endpoint = MetricsEndpoint(lambda: _exposition(folder), lambda: True, metrics_hosts(settings))
    metrics_port = await start_endpoint(endpoint, settings.metrics.listen)
    supervisor = Supervisor(
        command,
        settings.server.workers,
        {**os.environ, MULTIPROCESS_VARIABLE: str(folder), "TOOLHUB_SERVER_WORKERS": str(settings.server.workers)},
        ended=lambda pid: mark_process_dead(pid, str(folder)),  # type: ignore[no-untyped-call]  # the library has no types there
        all_ready=lambda: greet(int(address.rpartition(":")[2]) if ":" in address else 0, metrics_port),
    )
    try:
        if not await supervisor.run():
            from toolhub_service.app.serving import StartRefused  # late: a supervisor needs nothing else of a hub

            raise StartRefused("a worker could not start; it says above why.")
    finally:
        await endpoint.stop()


def _command(address: str, config_file: Path | None, data_dir: Path | None) -> list[str]:
    command = [sys.executable, "-m", "toolhub_service", "serve", "--listen", address]
    command += ["--config", str(config_file)] if config_file else []
    command += ["--data-dir", str(data_dir)] if data_dir else []
    return command


def _exposition(folder: Path) -> bytes:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]  # likewise
    return generate_latest(registry)
