"""What workflows become, on a terminal: a tool after the other, then what became none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from toolhub_service.cli.output import print_pairs, print_prose, revealed

if TYPE_CHECKING:
    from toolhub_service.app.workflow_checks import WorkflowReport, WorkflowTool

_INDENT = "    "


def print_report(report: WorkflowReport) -> None:
    for tool in report.tools:
        _print_tool(tool)
        click.echo()
    for problem in report.problems:
        print_prose(revealed(problem), _INDENT, "✗", "red")
    for told in report.notes:
        print_prose(told, _INDENT, "·")


def _print_tool(tool: WorkflowTool) -> None:
    mark, colour = ("✗", "red") if tool.problems else ("!", "yellow") if tool.warnings else ("✓", "green")
    click.secho(f"{mark} {revealed(tool.name)}", fg=colour, bold=True, nl=False)
    click.secho(f"  {tool.version}  {tool.kind}, {tool.mode or 'not offered'}", dim=True)
    if tool.description:
        print_prose(_INDENT + revealed(tool.description).partition("\n")[0], _INDENT)
    print_pairs((f"{_INDENT}{name}", revealed(value)) for name, value in _facts(tool))
    for problem in tool.problems:
        print_prose(f"{_INDENT}✗ {revealed(problem)}", f"{_INDENT}  ")
    for warning in tool.warnings:
        print_prose(f"{_INDENT}! {revealed(warning)}", f"{_INDENT}  ")


def _facts(tool: WorkflowTool) -> Iterator[tuple[str, str]]:
    yield "from", tool.place
    if tool.capabilities:
        yield "needs", ", ".join(tool.capabilities)
    for name, told in tool.arguments.items():
        yield f"takes {name}", told
    for name, told in tool.results.items():
        yield f"gives {name}", told
    yield from tool.facts.items()
