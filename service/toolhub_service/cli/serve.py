"""`toolhub serve`: the hub itself."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from toolhub_service import __version__
from toolhub_service.cli.settings_options import read_settings, settings_options
from toolhub_service.settings.document import Settings


@click.command()
@click.option("--listen", default="", help="host:port or unix:/path; port 0 picks a free one.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes on the port.")
@settings_options
def serve(listen: str, workers: int | None, config_file: Path | None, data_dir: Path | None) -> None:
    """Run the hub until SIGTERM or Ctrl-C. Without a file it serves this machine only, with the starter policy.

    SIGHUP reads policy, API keys and sources anew; all are also looked at every two seconds.

    \b
    Examples:
      toolhub serve
      toolhub serve --config toolhub.yaml --workers 4
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # commands are spawned; grpc must not hook into fork
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is told in our own words
    _keep_to_itself()
    settings = read_settings(
        config_file,
        data_dir,
        TOOLHUB_SERVER_LISTEN=listen,
        TOOLHUB_SERVER_WORKERS=str(workers) if workers else "",
    )
    try:
        _run(settings, config_file, data_dir)
    except _refusals() as refused:
        from toolhub_service.cli.start_refusal import start_refusal

        raise click.ClickException(start_refusal(refused, settings)) from refused


def _keep_to_itself() -> None:
    """Commands and sources that run as the hub's user must not read its memory and environment."""
    from toolhub_service.tools.kernel_walls import hide_memory

    hide_memory()


def _run(settings: Settings, config_file: Path | None, data_dir: Path | None) -> None:
    from toolhub_service.app.file_modes import check_files
    from toolhub_service.app.hub import Hub
    from toolhub_service.app.serving import serve as serve_hub
    from toolhub_service.app.workers import READY, worker_number

    check_files(settings, config_file)
    worker = worker_number()
    if settings.server.workers > 1 and worker is None:
        from toolhub_service.app.supervising import supervise

        supervise(settings, config_file, data_dir, greet=lambda *ports: _greet(settings, *ports))
        return

    def ready(hub: Hub) -> None:
        if worker is None:
            _greet(settings, hub.server.port, hub.observing.metrics_port)
        else:
            click.echo(READY, nl=False)

    asyncio.run(serve_hub(settings, worker=worker, ready=ready))


def _greet(settings: Settings, port: int, metrics_port: int) -> None:
    from toolhub_service.cli.connection import DEFAULT_ADDRESS

    address = _address(settings.server.listen, port)
    click.echo(f"tool-hub {__version__} is serving on {address}")
    if metrics_port:
        host = settings.metrics.listen.rpartition(":")[0]
        click.echo(f"metrics: http://{host}:{metrics_port}/metrics")
    client = "" if address == DEFAULT_ADDRESS else f"TOOLHUB_ADDRESS={address} "
    click.echo(f"Next, in another terminal:  {client}{_program()} tools list")
    sys.stdout.flush()


def _address(listen: str, port: int) -> str:
    return listen if listen.startswith("unix") else f"{listen.rpartition(':')[0]}:{port}"


def _program() -> str:
    """How this program was called, as far as that can be typed again from here."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "toolhub" and not called.is_absolute() else "toolhub"


def _refusals() -> tuple[type[Exception], ...]:
    """What keeps a hub from starting and is not a defect."""
    from toolhub_service.app.file_modes import FilesLoose
    from toolhub_service.app.key_file import KeyFileInvalid
    from toolhub_service.app.listening import ListenRefused
    from toolhub_service.app.secret_file import SecretFileInvalid
    from toolhub_service.app.serving import StartRefused
    from toolhub_service.domain.errors import HubFailure, ToolFailure
    from toolhub_service.settings.loading import SettingsInvalid

    known = (OSError, FilesLoose, KeyFileInvalid, ListenRefused, SecretFileInvalid, SettingsInvalid, StartRefused)
    return (*known, HubFailure, ToolFailure)
