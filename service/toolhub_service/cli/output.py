"""Output: tables and text on a terminal, JSON in a pipe or with --json.

Whatever a hub sends is shown with its control characters made visible: a file or a web page that a tool has read must
not be able to drive the terminal it is shown on.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from google.protobuf.message import Message

Command = TypeVar("Command", bound=Callable[..., Any])

_GAP: Final = "  "
_LAST_COLUMN_MIN: Final = 24
_CONTROL_PICTURES: Final = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
"""Unpaired surrogates, which JSON may hold and UTF-8 output cannot."""
_CONTROLS: Final = {**_CONTROL_PICTURES, **dict.fromkeys(range(0x7F, 0xA0), "�")}


def json_option(command: Command) -> Command:
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON. This is the default when the output is not a terminal."
    )(command)


def wants_json(as_json: bool) -> bool:
    return as_json or not sys.stdout.isatty()


def print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)
    if not text.isascii() and _SURROGATES.search(text):
        text = json.dumps(value, indent=2 if sys.stdout.isatty() else None)
    click.echo(text)


def print_json_line(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def columns() -> int:
    """Width of the terminal."""
    return shutil.get_terminal_size().columns


def legible(text: str) -> str:
    """The text with every control character but line ends and tabs made visible."""
    return text.translate(_CONTROLS)


def revealed(text: str) -> str:
    """As `legible`, with invisible characters named too: for text that an untrusted party wrote for a model to read."""
    from toolhub_service.guards.descriptions import escaped

    return escaped(text)


def first_line(text: str) -> str:
    """The first sentence or the first line, whichever is shorter; a remote tool's text is untrusted."""
    return revealed(text.partition(". ")[0].partition("\n")[0].rstrip("."))


def counted(count: int, noun: str) -> str:
    """Such as `1 tool` and `2 tools`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def note(text: str, *, err: bool = False) -> None:
    """Print a dim line beside the answer."""
    click.secho(text, dim=True, err=err)


def print_prose(text: str, indent: str = "", mark: str = "", colour: str | None = None) -> None:
    """Sentences, wrapped, after a coloured mark; lines of their own keep their ends, so that they can be pasted."""
    first, _, rest = legible(text).partition("\n")
    first = f"{mark} {first}" if mark else first
    told = textwrap.wrap(first, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if mark:
        told[0] = click.style(mark, fg=colour, bold=colour is None) + told[0][len(mark) :]
    click.echo("\n".join([*told, rest] if rest else told))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, is_cut: bool = False) -> None:
    """A table without borders; the last column wraps to the terminal, or is cut to one line each."""
    shown = [[legible(cell) for cell in row] for row in rows]
    *fixed, _ = [max(map(_width, column)) for column in zip(headings, *shown, strict=True)]
    left = sum(fixed) + len(_GAP) * len(fixed)
    room = max(columns() - left, _LAST_COLUMN_MIN)
    click.secho(_line(headings, fixed), bold=True)
    for row in shown:
        first, *more = [_cut(row[-1], room)] if is_cut else textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        click.echo(_line([*row[:-1], first], fixed))
        for line in more:
            click.echo(" " * left + line)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """`name  value` lines, the names dim."""
    shown = list(pairs)
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(click.style(name.ljust(width), dim=True) + _GAP + legible(value))


def message_as_json(message: Message) -> dict[str, Any]:
    """A message as its canonical JSON (camelCase), with fields named `*_json` as JSON values instead of base64."""
    from google.protobuf.json_format import MessageToDict

    return _unfold_fields(message, MessageToDict(message, preserving_proto_field_name=False))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=False)]
    return _GAP.join([*padded, cells[-1]]).rstrip()


def _width(text: str) -> int:
    """Columns on a terminal: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _cut(text: str, room: int) -> str:
    if _width(text) <= room:
        return text
    while text and _width(text) >= room:
        text = text[:-1]
    return text.rstrip(" ,;:") + "…"


def _unfold_fields(message: Message, plain: dict[str, Any]) -> dict[str, Any]:
    """`result_json`, `args_json`, … are shown as the JSON they are, not as base64."""
    for field, value in message.ListFields():
        name = field.json_name
        if field.type == field.TYPE_BYTES and field.name.endswith("_json") and not field.is_repeated:
            del plain[name]
            plain[name.removesuffix("Json")] = json.loads(value or b"null")
        elif field.message_type is not None and field.message_type.full_name.startswith("toolhub."):
            if field.message_type.GetOptions().map_entry:
                continue
            if field.is_repeated:
                plain[name] = [_unfold_fields(item, shown) for item, shown in zip(value, plain[name], strict=True)]
            else:
                plain[name] = _unfold_fields(value, plain[name])
        elif name.endswith("Struct") and name in plain:
            plain[name.removesuffix("Struct")] = plain.pop(name)
    return plain
