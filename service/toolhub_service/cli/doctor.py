"""`toolhub doctor`: is this machine fit, would the hub start, and what would it lack?"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.connection import connection_options
from toolhub_service.cli.doctor_live import live_findings
from toolhub_service.cli.output import json_option, print_json, print_prose, wants_json
from toolhub_service.cli.settings_options import read_settings, settings_options

if TYPE_CHECKING:
    from toolhub_service.app.findings import Finding
    from toolhub_service.settings.document import Settings

_EXIT_UNFIT = 1
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}
_NAME_CHARS = 13


@click.command()
@click.option("--live", is_flag=True, help="Ask the running hub, too: how its sources fare, and what they last said.")
@json_option
@settings_options
@connection_options
def doctor(live: bool, as_json: bool, config_file: Path | None, data_dir: Path | None, **options: Any) -> None:
    """Look at machine and configuration: what is well, what is missing, what to do, which tools that disables.

    Changes nothing, and needs no running hub but with --live. Reads the hub's files and asks shared stores whether
    they answer. Exit 1 when something must be put right first.

    \b
    Example:
      toolhub doctor --config toolhub.yaml
      toolhub doctor --live
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a port that no hub has is told in our own words
    findings = asyncio.run(_examine(read_settings(config_file, data_dir), config_file))
    if live:
        findings += live_findings(options)
    failed = [finding for finding in findings if finding.state.value == "fail"]
    if wants_json(as_json):
        print_json({"ok": not failed, "findings": [_plain(finding) for finding in findings]})
    else:
        for finding in findings:
            _show(finding)
        _conclude(findings, len(failed))
    if failed:
        sys.exit(_EXIT_UNFIT)


async def _examine(settings: Settings, config_file: Path | None) -> list[Finding]:
    from toolhub_service.app.machine_checks import machine_checks
    from toolhub_service.app.paths import Paths
    from toolhub_service.app.settings_checks import settings_checks
    from toolhub_service.app.toolbox import bubblewrap_of

    bubblewrap = bubblewrap_of(settings.tools.bubblewrap)
    return [*machine_checks(Paths(settings).data_dir, bubblewrap), *await settings_checks(settings, config_file)]


def _show(finding: Finding) -> None:
    mark, colour = _MARKS[finding.state.value]
    indent = " " * (_NAME_CHARS + 3)
    print_prose(f"{finding.name.ljust(_NAME_CHARS)} {finding.told}", indent, mark, colour)
    if finding.disables:
        print_prose(f"{indent}disables {', '.join(finding.disables)}", indent)
    if finding.advice:
        print_prose(f"{indent}→ {finding.advice}", f"{indent}  ")


def _conclude(findings: list[Finding], failed: int) -> None:
    warned = sum(finding.state.value == "warn" for finding in findings)
    if failed:
        click.secho(f"\n{failed} must be put right before the hub is fit to run.", fg="red")
    elif warned:
        click.secho(f"\nThe hub runs; {warned} could be better.", fg="yellow")
    else:
        click.secho("\nAll is well.", fg="green")


def _plain(finding: Finding) -> dict[str, object]:
    return {
        "name": finding.name,
        "state": finding.state.value,
        "told": finding.told,
        "advice": finding.advice,
        "disables": list(finding.disables),
    }
