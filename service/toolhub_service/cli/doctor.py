"""`toolhub doctor`: can the hub run here, and what would it lack?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from google.protobuf.json_format import MessageToDict

from toolhub_service import __version__
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.connection.channel import Endpoint, is_absent
from toolhub_service.cli.connection.client import (
    HubRefused,
    HubUnreachable,
    connect,
    connection_options,
    endpoint_of,
)
from toolhub_service.cli.connection.own_endpoint import own_endpoint
from toolhub_service.cli.health import entrances, server_info
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    count_text,
    enum_name,
    print_json,
    print_line,
    print_prose,
    span,
    style,
    text_option,
    wants_json,
)
from toolhub_service.cli.terminal.progress import amount

if TYPE_CHECKING:
    from toolhub.v1 import source_pb2
    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.app.doctor import Finding
    from toolhub_service.settings.document import Settings


# Without --live the doctor does not wait for an unreachable hub.
_QUICK_S = 2.0
_LINES_MAX = 5
# Begins a diagnostic line that the source's process wrote.
_STDERR = "stderr: "


def hub_to_ask(settings: Settings, options: Mapping[str, Any]) -> Endpoint:
    """Return the hub of --address or of the context; without both, the one that the configuration describes.

    Raises ClickException.
    """
    is_chosen = click.get_current_context().get_parameter_source("address") is not ParameterSource.DEFAULT
    if is_chosen or options["context_name"]:
        return endpoint_of(options)
    return own_endpoint(settings, options)


def running_hub(
    settings: Settings, options: Mapping[str, Any]
) -> tuple[pb.GetServerInfoResponse | None, list[Finding]]:
    """Return the information of the hub at the address; (None, []) when none answers, or an older one.

    A finding reports why a connection to an existing hub fails, such as TLS on one side only.
    """
    from toolhub_service.app.doctor import warn

    address = options["address"]
    try:
        hub = hub_to_ask(settings, options)
        address = hub.address
        with connect(hub, options["api_key"], min(options["timeout_s"], _QUICK_S)) as connection:
            info = server_info(connection)
            return info, [_of_server(info, connection.hub.address)]
    # A hub that refuses is running, which is all that is checked here.
    except HubRefused:
        return None, []
    except HubUnreachable as unreachable:
        found = unreachable.message
        return None, [] if is_absent(found) else [warn("running hub", found, f"Its address is {address}.")]
    except click.ClickException as unfit:  # no credential, or no file of the context
        return None, [warn("running hub", unfit.message, "Calls of this command line fail until then.")]


def _of_server(info: pb.GetServerInfoResponse, address: str) -> Finding:
    from toolhub_service.app.doctor import ok, warn

    server, limits = info.server, info.server.limits
    text = (
        f"version {server.version} at {address}; entrances: {entrances(server)}; "
        f"limits: requests of {amount(limits.max_request_bytes, 'bytes')}, "
        f"calls of {span(limits.max_call_timeout.ToMilliseconds() / 1_000)}, "
        f"jobs of {span(limits.max_job_timeout.ToMilliseconds() / 1_000)}, "
        f"artifacts of {amount(limits.max_artifact_bytes, 'bytes')}; you are {info.principal}"
    )
    if server.version == __version__:
        return ok("running hub", text)
    advice = f"This command has version {__version__}. Restart the hub after an upgrade."
    return warn("running hub", text, advice)


def live_findings(settings: Settings, options: Mapping[str, Any]) -> list[Finding]:
    """Return one finding for each source of the running hub, or one that it cannot be reached."""
    from toolhub.v1 import registry_service_pb2 as pb
    from toolhub_service.app.doctor import fail

    try:
        with connect(hub_to_ask(settings, options), options["api_key"], options["timeout_s"]) as connection:
            answer = connection.call(connection.registry.ListSources, pb.ListSourcesRequest())
    except click.ClickException as unasked:
        advice = "Pass the hub's --address and an operator's --api-key."
        return [fail("running hub", unasked.message, advice)]
    return [finding for status in answer.sources for finding in _of(status)]


def _of(status: source_pb2.SourceStatus) -> Iterator[Finding]:
    from toolhub.v1 import source_pb2
    from toolhub_service.app.doctor import ok, warn

    name = f"source {status.source}"
    quarantined = f", {status.quarantined} of them quarantined" if status.quarantined else ""
    if status.state == source_pb2.SOURCE_STATE_READY:
        tools = f"{count_text(status.tools, 'tool')}{quarantined}"
        if status.breaker == source_pb2.BREAKER_STATE_OPEN:
            advice = f"Its calls are refused for a while. `toolhub sources show {status.source}` shows its connection."
            yield warn(
                name,
                f"{tools}; they can be listed, but calls failed repeatedly (circuit breaker open)",
                advice,
                f"{status.source}/*",
            )
        else:
            yield ok(name, tools)
        return
    if status.login_commands:
        choice = " or ".join(f"`{command}`" for command in status.login_commands)
        yield warn(name, "NEEDS_LOGIN: its server wants a login", f"Run {choice}.", f"{status.source}/*")
        return
    state = enum_name(status, "state")
    shown = f"{state}: {status.message}" if status.message else state
    wrote = [line.removeprefix(_STDERR) for line in status.diagnostics if line.startswith(_STDERR)]
    output = "; ".join(line for line in wrote[-_LINES_MAX:])
    yield warn(
        name, shown, f"Its last output: {output}" if output else f"`toolhub sources show {status.source}` shows more."
    )


_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}
_NAME_CHARS = 13


@click.command()
@click.option("--live", is_flag=True, help="Also ask the running hub for the state of its sources.")
@text_option
@settings_options
@connection_options
def doctor(live: bool, as_json: bool, config_file: Path | None, data_dir: Path | None, **options: Any) -> None:
    """Check this machine and the configuration: what is missing, what to do, and which tools it disables.

    It changes nothing and needs no running hub, except with --live. It reads the hub's files and connects to shared
    stores. If a hub answers at --address, or where the configuration lets it listen, its version, endpoints
    and limits are shown. Exit 1 when something must be fixed before the hub can run.

    \b
    Example:
      toolhub doctor --config toolhub.yaml
      toolhub doctor --live
    """
    settings = read_settings(config_file, data_dir)
    findings = asyncio.run(_examine(settings, config_file))
    info, found = running_hub(settings, options)
    findings += [*found, *(live_findings(settings, options) if live else ())]
    failed = [finding for finding in findings if finding.state.value == "fail"]
    if wants_json(as_json):
        server = {} if info is None else {"server": MessageToDict(info.server)}
        print_json({"ok": not failed, "findings": [_plain(finding) for finding in findings], **server})
    else:
        for finding in findings:
            _show(finding)
        _summarize(findings, len(failed))
    if failed:
        sys.exit(EXIT_REFUSED)


async def _examine(settings: Settings, config_file: Path | None) -> list[Finding]:
    from toolhub_service.app.config_files.paths import Paths
    from toolhub_service.app.doctor.configuration import settings_checks
    from toolhub_service.app.doctor.machine import machine_checks, sandbox_check, scripts_check
    from toolhub_service.app.wiring.deps import make_ladder
    from toolhub_service.sandbox.script_python import ScriptPython

    paths = Paths(settings)
    ladder = make_ladder(settings)
    found = machine_checks(paths.data_dir, paths.bubblewrap, settings.storage.reserve_bytes)
    machine = [*found, await sandbox_check(ladder), await scripts_check(ScriptPython(ladder, settings.skills.python))]
    return [*machine, *await settings_checks(settings, config_file)]


def _show(finding: Finding) -> None:
    mark, colour = _MARKS[finding.state.value]
    indent = " " * (_NAME_CHARS + 3)
    print_prose(f"{finding.name.ljust(_NAME_CHARS)} {finding.text}", indent, mark, colour)
    if finding.disables:
        print_prose(f"{indent}disables {', '.join(finding.disables)}", indent)
    if finding.advice:
        print_prose(f"{indent}→ {finding.advice}", f"{indent}  ")


def _summarize(findings: list[Finding], failed: int) -> None:
    warned = sum(finding.state.value == "warn" for finding in findings)
    print_line()
    if failed:
        print_line(style(f"{count_text(failed, 'error')}: fix before start.", fg="red"))
    elif warned:
        print_line(style(f"{count_text(warned, 'warning')}; the hub can start.", fg="yellow"))
    else:
        print_line(style("No problem found.", fg="green"))


def _plain(finding: Finding) -> dict[str, object]:
    return {
        "name": finding.name,
        "state": finding.state.value,
        "told": finding.text,
        "advice": finding.advice,
        "disables": list(finding.disables),
    }
