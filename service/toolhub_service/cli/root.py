"""`toolhub`: the groups of commands, each imported only when it is used, so that every start is quick."""

from __future__ import annotations

import importlib
import sys

import click

from toolhub_service import __version__

_COMMANDS = {
    "serve": ("toolhub_service.cli.serve:serve", "Run the hub."),
    "call": ("toolhub_service.cli.call:call", "Call a tool."),
    "tools": ("toolhub_service.cli.tools:tools", "List, search, show and export tools."),
    "policy": ("toolhub_service.cli.policy:policy", "Check, explain and begin a policy."),
    "audit": ("toolhub_service.cli.audit:audit", "Read, follow, verify and export the audit log."),
    "config": ("toolhub_service.cli.config:config", "Show and check the configuration."),
    "keys": ("toolhub_service.cli.keys:keys", "Make, list and revoke API keys."),
    "health": ("toolhub_service.cli.health:health", "Exit 0 when the hub is serving."),
    "doctor": ("toolhub_service.cli.doctor:doctor", "What this machine lacks, and which tools that disables."),
    "completion": ("toolhub_service.cli.completion:completion", "Print the shell completion script."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and imports one when it is run or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toolhub")
def toolhub() -> None:
    """tool-hub: the one governed door between AI agents and the tools they use.

    A first run: `toolhub serve` in one terminal, `toolhub tools list` in another.
    """


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the tool or check said no, 2 wrong usage, 3 the hub could not be asked."""
    toolhub(prog_name="toolhub", standalone_mode=True)
    sys.exit(0)
