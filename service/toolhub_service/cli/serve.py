"""`toolhub serve`: the hub itself."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from toolhub_service import __version__
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.output import print_line

if TYPE_CHECKING:
    from toolhub_service.domain.errors import ToolFailure
    from toolhub_service.settings.document import Settings


# The interpreter switches threads every 5 ms by default, for which the event loop would wait after each of its steps
# while a thread computes. Beside 8 callers a call switches threads 17 times with either interval.
SWITCH_INTERVAL_S = 0.0005

# Why a hub does not start, in one line: which file, server or setting, and what to do. Refusals name no path and no
# address, because callers of a running hub read them; the operator who starts the hub needs both.

_DAMAGED = (
    "It is damaged. Keep a copy and restore it from a backup; or move audit.db*, audit-checkpoints.jsonl and a copy of "
    "audit.key away together, and begin a new log with `toolhub audit begin`"
)
_UNUSABLE = "Check the folder's free space, owner and mode"


def start_refusal(refused: Exception, settings: Settings) -> str:
    """Return one line about an exception that prevents a start and is not a defect."""
    from toolhub_service.domain.errors import ToolFailure

    if isinstance(refused, ToolFailure):
        return _tool_failure(refused, settings)
    if not isinstance(refused, OSError):
        return str(refused)
    if refused.errno is None:  # raised by the hub, with its own message
        advice = "Find what listens there (`ss -ltnp`), or use another address with --listen."
        return f"{refused}. {advice}" if str(refused).startswith("cannot listen on") else str(refused)
    return f"{refused.filename or 'the system'}: {refused.strerror}. {_advice_for(refused, settings)}"


def _tool_failure(refused: ToolFailure, settings: Settings) -> str:
    from toolhub_service.app.paths import Paths

    error = refused.error
    details = error.details
    if details.get("component") == "audit" and not settings.stores.postgres_url:
        return _audit_failure(refused.__cause__, Paths(settings).audit)
    reason = details.get("reason")
    if details.get("store") == "redis":
        shown = _without_credentials(settings.stores.redis_url)
        return f"The Redis of stores.redis_url, {shown}, cannot be used: {reason}. Start it, or correct the URL."
    if details.get("store") == "postgres":
        place = details.get("server")
        return (
            f"The PostgreSQL of stores.postgres_url, {place}, cannot be used: {reason}. Start it, or correct the URL."
        )
    if details.get("errno") and not reason:
        return f"{error.message} ({details['errno']}; artifacts: {Paths(settings).artifacts})"
    return f"{error.message} Reason: {reason}." if reason else error.message


def _audit_failure(cause: BaseException | None, file: Path) -> str:
    import sqlite3

    if not isinstance(cause, sqlite3.Error | OSError):  # refused by the writer's thread, which logs the cause
        return f"The audit log {file} cannot be written; `audit_write_failed` above says why. {_UNUSABLE}."
    is_damaged = isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.OperationalError)
    return f"The audit log {file} cannot be used: {cause}. {_DAMAGED if is_damaged else _UNUSABLE}."


def _without_credentials(url: str) -> str:
    """Return the address of a server, without user and password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


def _advice_for(refused: OSError, settings: Settings) -> str:
    from toolhub_service.app.paths import Paths

    folder = Paths(settings).data_dir.absolute()
    if refused.filename and Path(refused.filename).absolute().is_relative_to(folder):
        return (
            "The hub keeps its files there: check the folder's owner and mode, or use another folder with --data-dir."
        )
    return "Check it, or name another one in the configuration."


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
    from toolhub_service.app.file_modes import check_files
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
    from toolhub_service.mcp_server.listener import NOT_INSTALLED, is_installed

    mcp = settings.server.mcp
    if not mcp.enabled or mcp.listen.endswith(":0"):
        return 0, ""
    return (int(mcp.listen.rpartition(":")[2]), "") if is_installed() else (0, NOT_INSTALLED)


def _mcp_words(settings: Settings, port: int, problem: str) -> str:
    """Return where MCP is served, and what to paste into a client; or why it is not."""
    if problem:
        return problem
    from toolhub_service.cli.mcp_clients import http_entry, mcp_url

    url = mcp_url(settings, port)
    entry = http_entry(url, "" if "insecure-local" in settings.auth.modes else "KEY")
    return f"{url}  to paste into a client: {json.dumps({'mcpServers': {'tool-hub': entry}})}"


def _print_stopped(settings: Settings) -> None:
    """For a person at a terminal, where the log is for one too."""
    if not sys.stderr.isatty() or settings.logs.format == "json":
        return
    from toolhub_service.app.paths import Paths

    stores = settings.stores
    are_here = stores.kind == "sqlite" and not (stores.postgres_url or stores.redis_url)
    kept = "Jobs, audit log and settings are" if are_here else "What the hub keeps in files is"
    print_line(f"Stopped. {kept} in {Paths(settings).data_dir.absolute()}", err=True)


def client_environment(settings: Settings, address: str) -> str:
    """Return what a client of this machine sets before its command."""
    from toolhub_service.cli.channel import DEFAULT_ADDRESS

    tls = settings.server.tls
    address = _certified(settings, address)
    asks_clients = settings.asks_clients
    variables = {
        "TOOLHUB_ADDRESS": "" if address == DEFAULT_ADDRESS else address,
        "TOOLHUB_CA_FILE": tls.certificate_file,  # a client that trusts it needs no CA
        "TOOLHUB_CERT_FILE": "CERTIFICATE" if asks_clients else "",
        "TOOLHUB_KEY_FILE": "KEY" if asks_clients else "",
        "TOOLHUB_API_KEY": "" if {"insecure-local", "spiffe"} & set(settings.auth.modes) else "KEY",
    }
    return "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items() if value)


def _certified(settings: Settings, address: str) -> str:
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


def refusals() -> tuple[type[Exception], ...]:
    """Return exceptions that prevent a start and are not defects."""
    from toolhub_service.app.file_modes import FilesLoose
    from toolhub_service.app.files import SecretFileInvalid
    from toolhub_service.app.key_file import KeyFileInvalid
    from toolhub_service.app.listening import ListenRefused
    from toolhub_service.app.serving import StartRefused
    from toolhub_service.domain.errors import HubFailure, ToolFailure
    from toolhub_service.settings.loading import SettingsInvalid

    known = (OSError, FilesLoose, KeyFileInvalid, ListenRefused, SecretFileInvalid, SettingsInvalid, StartRefused)
    return (*known, HubFailure, ToolFailure)
