"""docs/cli.md: the help of every command."""

from __future__ import annotations

from collections.abc import Iterator

import click
from tables import NOTICE

from toolhub_service.cli.root import toolhub

_HEAD = f"""# Command line

The options of every command. {NOTICE.format(source="the commands' own help")} Client commands (those with
`--address`) connect to a hub over gRPC; `--address`, `--api-key` and `--ca-file` can be set by environment variables
([configuration](configuration.md#variables-that-are-no-settings)).

On a terminal the output is text. In a pipe or a file, lists are plain rows: a line of headings and one line for each
record, of whole cells without colours, separated by at least two spaces; counts and hints go to standard error.
Checks (`doctor`, `audit verify`, `policy check` …) are plain text. Commands about one record (`call`, `jobs submit`,
`tools show` …) print its JSON. `-o json`, `jsonl`, `yaml`, `name`, `table` and `wide` choose otherwise.

Exit codes: 0 success, 1 refused or failed (a tool, the policy or a check), 2 wrong usage, 3 the hub could not be
reached, 4 the connection broke after the request was sent (whether it had its effect is not known, and the message says
how to find out), 130 interrupted by Ctrl-C.
"""
_WIDTH = 100


def page() -> str:
    lines = [_HEAD]
    root = _context(toolhub, "toolhub", None)
    for context in _contexts(root):
        lines += [f"## {context.command_path}", "", "```text", context.get_help().rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


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
