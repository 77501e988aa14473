"""Tables and colours on a terminal, plain JSON in a pipe or with --json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON; the default when output is not a terminal."
    )(command)


def wants_json(as_json: bool) -> bool:
    return as_json or not sys.stdout.isatty()


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A borderless table that wraps to the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: what a tool says of itself is never markup
    Console().print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """`name  value` lines, the names dim."""
    shown = list(pairs)
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(click.style(name.ljust(width), dim=True) + "  " + value)


def message_as_json(message: Message) -> dict[str, Any]:
    """A message as its canonical JSON (camelCase), JSON payload bytes unfolded into values."""
    value: dict[str, Any] = _unfold(message)
    return value


def _unfold(message: Message) -> Any:
    """`result_json`, `args_json`, … are shown as the JSON they are, not as base64."""
    plain = MessageToDict(message, preserving_proto_field_name=False)
    return _unfold_fields(message, plain)


def _unfold_fields(message: Message, plain: dict[str, Any]) -> dict[str, Any]:
    for field, value in message.ListFields():
        name = field.json_name
        if field.type == field.TYPE_BYTES and field.name.endswith("_json") and not field.is_repeated:
            del plain[name]
            plain[name.removesuffix("Json")] = json.loads(value or b"null")
        elif field.message_type is not None and field.message_type.full_name.startswith("toolhub."):
            if field.is_repeated:
                plain[name] = [_unfold_fields(item, shown) for item, shown in zip(value, plain[name], strict=True)]
            else:
                plain[name] = _unfold_fields(value, plain[name])
        elif name.endswith("Struct") and name in plain:
            plain[name.removesuffix("Struct")] = plain.pop(name)
    return plain
