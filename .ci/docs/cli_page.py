"""docs/cli.md: the help of every command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy

import click
from tables import NOTICE

from toolhub_service.cli.connection.client import connection_options
from toolhub_service.cli.root import toolhub

_HEAD = f"""# Command line

The options of every command. {NOTICE.format(source="the commands' own help")} Client commands
connect to a hub over gRPC, with the [connection options](#connection-options); most of these can be set by environment
variables ([configuration](configuration.md#variables-that-are-no-settings)).

On a terminal the output is text. In a pipe or a file, lists are plain rows: a line of headings and one line for each
record, of whole cells without colours, separated by at least two spaces; counts and hints go to standard error.
Checks (`doctor`, `audit verify`, `policy check` …) are plain text. Commands about one record (`call`, `jobs submit`,
`tools show` …) print its JSON. `-o json`, `jsonl`, `yaml`, `name`, `table` and `wide` choose otherwise.

Exit codes: 0 success, 1 refused or failed (a tool, the policy or a check), 2 wrong usage, 3 the hub could not be
reached, 4 the connection broke after the request was sent (whether it had its effect is not known, and the message says
how to find out), 130 interrupted by Ctrl-C.
"""
_CONNECTION = """
## Connection options

Commands that connect to a hub have these options, too:
"""
_HAS_CONNECTION = "Also the [connection options](#connection-options)."
_WIDTH = 100
Shared = Mapping[str, tuple[str, str] | None]
"""Names of options and what the help says of each."""


def page() -> str:
    shared = connection_options_help()
    rows = click.HelpFormatter(width=_WIDTH)
    rows.write_dl([each for each in shared.values() if each])
    lines = [_HEAD + _CONNECTION, "```text", rows.getvalue().rstrip(), "```", ""]
    for context in _contexts(_context(toolhub, "toolhub", None)):
        left_out = hide(context, shared)
        lines += [f"## {context.command_path}", "", "```text", context.get_help().rstrip(), "```", ""]
        lines += [_HAS_CONNECTION, ""] if left_out else []
    return "\n".join(lines).rstrip() + "\n"


def connection_options_help() -> Shared:
    """What the help of a command says of each option that every command with a connection has."""
    command = click.command("any")(connection_options(lambda **_: None))
    context = _context(command, "any", None)
    return {option.opts[-1]: option.get_help_record(context) for option in command.params}


def hide(context: click.Context, shared: Shared) -> bool:
    """Hide the options of which the command's help says the same as `shared`; return whether there are any."""
    found = [
        option
        for option in context.command.params
        if option.opts[-1] in shared and option.get_help_record(context) == shared[option.opts[-1]]
    ]
    hidden = {id(option): copy(option) for option in found}
    for option in hidden.values():
        option.hidden = True  # type: ignore[attr-defined]
    context.command = copy(context.command)
    context.command.params = [hidden.get(id(option), option) for option in context.command.params]
    return bool(found)


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """The command's own and those of all commands beneath it."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            inner = context.command.get_command(context, name)
            if inner is not None:
                yield from _contexts(_context(inner, name, context))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    """As if the command were asked for help on a terminal of a fixed width."""
    settings = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    return click.Context(command, parent=parent, info_name=name, **settings)
