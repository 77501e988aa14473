"""`toolhub serve`: the hub itself."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolhub_service import __version__
from toolhub_service.app.start_refusals import refusals, start_refusal
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.terminal.output import print_line

if TYPE_CHECKING:
    from toolhub_service.settings.document import Settings


# The interpreter switches threads every 5 ms by default, for which the event loop would wait after each of its steps
# while a thread computes. Beside 8 callers a call switches threads 17 times with either interval.
SWITCH_INTERVAL_S = 0.0005


@click.command()
@click.option("--listen", default="", help="Address to listen on: HOST:PORT or unix:/path; port 0 picks a free port.")
@click.option("--workers", type=click.IntRange(1, 256), help="Number of server processes on the port.")
@settings_options
def serve(listen: str, workers: int | None, config_file: Path | None, data_dir: Path | None) -> None:
    """Run the hub until SIGTERM or Ctrl-C. Without a configuration it serves this machine only, with the
    starter policy.

    It reloads policy, API keys and sources when their files change (checked every two seconds) and on SIGHUP.

    \b
    Examples:
      toolhub serve
      toolhub serve --config toolhub.yaml --workers 4
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # commands are spawned; grpc must not hook into fork
    from toolhub_service.sandbox.kernel_walls import hide_memory

    hide_memory()  # commands and sources that run as the hub's user must not read its memory and environment
    settings = read_settings(
        config_file,
        data_dir,
        TOOLHUB_SERVER_LISTEN=listen,
        TOOLHUB_SERVER_WORKERS=str(workers) if workers else "",
    )
    try:
        _run(settings, config_file, data_dir)
    except refusals() as refused:
        raise click.ClickException(start_refusal(refused, settings)) from refused


def _run(settings: Settings, config_file: Path | None, data_dir: Path | None) -> None:
    from toolhub_service.app.config_files.modes import check_files
    from toolhub_service.app.hub import Hub
    from toolhub_service.app.serving import serve as serve_hub
    from toolhub_service.app.workers import READY, worker_number
    from toolhub_service.telemetry.logs import log_process_faults

    check_files(settings, config_file)
    if config_file is not None:
        os.environ["TOOLHUB_CONFIG"] = str(config_file.absolute())  # one of the files that nothing confined may see
    worker = worker_number()
    if settings.server.workers > 1 and worker is None:
        from toolhub_service.app.workers import supervise

        supervise(
            settings,
            config_file,
            data_dir,
            greet=lambda port, metrics: greet(settings, port, metrics, *_shared_mcp(settings)),
        )
        _print_stopped(settings)
        return

    def ready(hub: Hub) -> None:
        log_process_faults()
        if worker is None:
            ports = hub.server.port, hub.observing.metrics_port, hub.mcp.listener.port
            greet(settings, *ports, hub.mcp.problem, hub.server.keys_port)
        else:
            sys.stdout.buffer.write(READY)
            sys.stdout.flush()

    if (agent := settings.auth.spiffe.workload_api) and sys.stderr.isatty():
        print_line(f"Asking the SPIFFE agent at {agent} for a certificate; it is waited for, for 30 seconds.", err=True)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asyncio.run(serve_hub(settings, worker=worker, ready=ready))
    if worker is None:
        _print_stopped(settings)


def greet(
    settings: Settings, port: int, metrics_port: int, mcp_port: int = 0, mcp_problem: str = "", keys_port: int = 0
) -> None:
    """Print where the hub serves. `keys_port` 0: as `server.tls.keys_listen` says."""
    listen = settings.server.listen
    address = listen if listen.startswith("unix") else f"{listen.rpartition(':')[0]}:{port}"
    print_line(f"tool-hub {__version__} is serving on {address}")
    if keys := settings.server.tls.keys_listen:
        host, _, chosen = keys.rpartition(":")
        print_line(f"for API keys and tokens without a certificate: {host}:{keys_port or chosen}")
    if metrics_port:
        host = settings.metrics.listen.rpartition(":")[0]
        print_line(f"metrics: http://{host}:{metrics_port}/metrics")
    if mcp_port or mcp_problem:
        print_line(f"MCP: {_mcp_words(settings, mcp_port, mcp_problem)}")
    print_line(f"Next, in another terminal:  {client_environment(settings, address)}{_program()} tools list")
    sys.stdout.flush()


def _shared_mcp(settings: Settings) -> tuple[int, str]:
    """Return (port, problem) of the endpoint that all workers serve: as configured, because each binds it itself."""
    from toolhub_service.mcp_server.http.listener import NOT_INSTALLED, is_installed

    mcp = settings.server.mcp
    if not mcp.enabled or mcp.listen.endswith(":0"):
        return 0, ""
    return (int(mcp.listen.rpartition(":")[2]), "") if is_installed() else (0, NOT_INSTALLED)


def _mcp_words(settings: Settings, port: int, problem: str) -> str:
    """Return where MCP is served, and what to paste into a client; or why it is not."""
    if problem:
        return problem
    from toolhub_service.cli.mcp.clients import http_entry, mcp_url

    url = mcp_url(settings, port)
    entry = http_entry(url, "" if "insecure-local" in settings.auth.modes else "KEY")
    return f"{url}  to paste into a client: {json.dumps({'mcpServers': {'tool-hub': entry}})}"


def _print_stopped(settings: Settings) -> None:
    """For a person at a terminal, where the log is for one too."""
    if not sys.stderr.isatty() or settings.logs.format == "json":
        return
    from toolhub_service.app.config_files.paths import Paths

    stores = settings.stores
    are_here = stores.kind == "sqlite" and not (stores.postgres_url or stores.redis_url)
    kept = "Jobs, audit log and settings are" if are_here else "What the hub keeps in files is"
    print_line(f"Stopped. {kept} in {Paths(settings).data_dir.absolute()}", err=True)


def client_environment(settings: Settings, address: str) -> str:
    """Return what a client of this machine sets before its command."""
    from toolhub_service.cli.connection.channel import DEFAULT_ADDRESS

    tls = settings.server.tls
    address = _certificate_address(settings, address)
    asks_clients = settings.asks_clients
    variables = {
        "TOOLHUB_ADDRESS": "" if address == DEFAULT_ADDRESS else address,
        "TOOLHUB_CA_FILE": tls.certificate_file,  # a client that trusts it needs no CA
        "TOOLHUB_CERT_FILE": "CERTIFICATE" if asks_clients else "",
        "TOOLHUB_KEY_FILE": "KEY" if asks_clients else "",
        "TOOLHUB_API_KEY": "" if {"insecure-local", "spiffe"} & set(settings.auth.modes) else "KEY",
    }
    return "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items() if value)


def _certificate_address(settings: Settings, address: str) -> str:
    """Return the address with a name that the certificate has; a wildcard becomes this machine."""
    from toolhub_service.app.own_hub import certified_names, reachable

    if address.startswith("unix"):
        return address
    address = reachable("server.listen", address)
    host, _, port = address.rpartition(":")
    names = certified_names(settings)
    if not names or host.strip("[]") in names:
        return address
    named = "localhost" if "localhost" in names else names[0]
    return f"[{named}]:{port}" if ":" in named else f"{named}:{port}"


def _program() -> str:
    """Return how this program can be called again from here."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "toolhub" and not called.is_absolute() else "toolhub"
