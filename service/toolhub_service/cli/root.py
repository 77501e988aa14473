"""`toolhub`: the command groups, each imported only when it is used, so that every start is quick."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
from typing import Any

import click

from toolhub_service import __version__
from toolhub_service.guards.foreign_text import escape_hidden

# By name, not imported: gRPC and the generated code take some 90 ms (python -X importtime), also at each completion.
_COMMANDS = {
    "serve": ("toolhub_service.cli.serve:serve", "Run the hub."),
    "call": ("toolhub_service.cli.call:call", "Call a tool, or show what the call would do."),
    "run": (
        "toolhub_service.cli.run:run",
        "Call tools under the names of local-tools or CountBot, JSON in and out.",
    ),
    "program": ("toolhub_service.cli.program:program", "Run a program that calls tools, in place of many calls."),
    "tools": ("toolhub_service.cli.tools:tools", "List, search, show, export and register tools."),
    "sources": (
        "toolhub_service.cli.sources.commands:sources",
        "List, show, add, check, refresh and remove sources of tools.",
    ),
    "skills": (
        "toolhub_service.cli.skills.commands:skills",
        "Check, show, draft, add, list and run skills (folders with a SKILL.md).",
    ),
    "workflows": (
        "toolhub_service.cli.sources.workflows:workflows",
        "Check n8n workflows and ComfyUI templates offline.",
    ),
    "pins": (
        "toolhub_service.cli.sources.pins:pins",
        "Review changed definitions of remote tools; accept or reject them.",
    ),
    "jobs": ("toolhub_service.cli.jobs.commands:jobs", "Submit, list, watch and cancel jobs (long-running calls)."),
    "artifacts": (
        "toolhub_service.cli.artifacts.commands:artifacts",
        "Upload, download, list and delete artifacts (stored files).",
    ),
    "approvals": ("toolhub_service.cli.approvals.commands:approvals", "List, show, approve, deny and watch approvals."),
    "policy": (
        "toolhub_service.cli.policy.commands:policy",
        "Create, change and check policy.yaml, and explain its decisions.",
    ),
    "audit": ("toolhub_service.cli.audit.commands:audit", "Read, follow, verify and export the audit log."),
    "login": ("toolhub_service.cli.connection.login:login", "Log in at the issuer of the hub's tokens."),
    "logout": ("toolhub_service.cli.connection.login:logout", "Revoke the tokens of a login, and forget them."),
    "context": ("toolhub_service.cli.connection.context:context", "Save hubs under names, and choose one."),
    "auth": ("toolhub_service.cli.connection.auth:auth", "Check tokens, print one, and show your identity."),
    "config": ("toolhub_service.cli.config:config", "Show and check the configuration."),
    "keys": ("toolhub_service.cli.keys:keys", "Create, list, replace and revoke API keys."),
    "backup": ("toolhub_service.cli.backup:backup", "Back up the data folder while the hub runs; check a backup."),
    "restore": ("toolhub_service.cli.backup:restore", "Restore a backup, with the hub stopped."),
    "credentials": (
        "toolhub_service.cli.credentials:credentials",
        "Store, list and revoke your own credentials for sources.",
    ),
    "health": ("toolhub_service.cli.health:health", "Exit 0 when the hub is serving."),
    "doctor": (
        "toolhub_service.cli.doctor:doctor",
        "Check this machine, the configuration and the hub; say what to fix.",
    ),
    "mcp": ("toolhub_service.cli.mcp.commands:mcp", "Serve MCP on standard input and output; configure MCP clients."),
    "extras": ("toolhub_service.cli.extras:extras", "List and install the optional packages that features need."),
    "completion": ("toolhub_service.cli.completion:completion", "Print the shell completion script."),
}
# New objects after which the garbage collector runs. Objects made by imports stay, 170,000 when a hub serves: with
# Python's 700 they are traversed two hundred times, a quarter of the start.
_COLLECT_AFTER = 250_000
_NAME_COLUMNS = 11
_SENTENCE_MAX = 300
_SECTIONS = {
    "Use tools": ("call", "run", "program", "tools", "jobs", "artifacts", "credentials"),
    "Control calls": ("approvals", "policy", "audit"),
    "Add tools": ("sources", "skills", "workflows", "pins"),
    "Connect": ("login", "logout", "context", "auth", "mcp", "completion"),
    "Run the hub": ("serve", "doctor", "health", "config", "extras", "keys", "backup", "restore"),
}
# Options that may stand before the command.
_VALUED = frozenset(
    {"--context", "--address", "--api-key", "--ca-file", "--cert", "--cert-file", "--key", "--key-file", "--timeout"}
    | {"-o", "--output", "--config", "--data-dir"}
)
_SWITCHES = frozenset({"--json", "--tls", "--no-tls"})
# `toolhub jobs submit` has a --key that is no file.
_MOVED_AS = {"--key": "--key-file"}
_EXIT_CODES = (
    "Exit codes: 0 success; 1 refused or failed; 2 wrong usage; 3 the hub could not be reached; 4 the "
    "connection broke after the request was sent, and whether it had its effect is not known; 130 interrupted."
)


def _legible_failure(message: str, code: int) -> click.ClickException:
    class LegibleFailure(click.ClickException):
        exit_code = code

    return LegibleFailure(message)


class SuggestingGroup(click.Group):
    """Names the nearest command when the typed one does not exist; takes options of its commands before their name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move options of commands that are given before the command behind its name."""
        own = {name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
        moved: list[str] = []
        rest = list(args)
        while rest and (name := rest[0].partition("=")[0]) in _VALUED | _SWITCHES and name not in own:
            size = 1 if name in _SWITCHES or "=" in rest[0] else 2
            moved, rest = [*moved, rest[0].replace(name, _MOVED_AS.get(name, name), 1), *rest[1:size]], rest[size:]
        if moved and rest:
            rest = [rest[0], *moved, *rest[1:]]
        return super().parse_args(ctx, rest)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as unknown:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known, n=1, cutoff=0.5)
            advice = f"Did you mean `{near[0]}`?" if near else f"Commands: {', '.join(known)}."
            raise click.UsageError(f"There is no command `{args[0]}`. {advice}", ctx) from unknown

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a failure's message may quote text of others, and click prints it as it is."""
        try:
            return super().invoke(ctx)
        except click.ClickException as failed:
            message = failed.format_message()
            # A line of it must not pass for one of the command itself.
            if (shown := escape_hidden(message).replace("\n", "\n  ")) == message:
                raise
            raise _legible_failure(shown, failed.exit_code) from failed

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command uncut: click would cut it after some forty characters."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_SENTENCE_MAX)) for name, each in commands if each])


class LazyGroup(SuggestingGroup):
    """Lists its commands without importing them; imports one when it runs or shows its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_NAME_COLUMNS), _COMMANDS[name][1]) for name in names])


@click.group(
    cls=LazyGroup,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="toolhub")
@click.pass_context
def toolhub(context: click.Context) -> None:
    """tool-hub: a policy-enforcing gRPC gateway between AI agents and their tools.

    \b
    To try it, in two terminals:
      toolhub serve
      toolhub tools list

    Options may also precede the command: toolhub --context prod tools list
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False  # no-color.org


def main() -> None:
    """The entry point of `toolhub` and `python -m toolhub_service`."""
    gc.set_threshold(_COLLECT_AFTER)
    # The commands report failures, not gRPC's log, which reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    toolhub(prog_name="toolhub", windows_expand_args=False)
