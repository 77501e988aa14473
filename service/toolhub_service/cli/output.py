"""Output: tables and text on a terminal. In a pipe lists and checks are plain text, single records JSON.

Text from a hub is shown with its control characters made visible: a file or a web page that a tool has read must not be
able to control the terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp


# Exit code when the hub refused, a check failed or another error occurred; click uses 2 for wrong usage.
EXIT_REFUSED = 1
EXIT_INTERRUPTED = 130  # as a shell reports a command that SIGINT ended

Command = TypeVar("Command", bound=Callable[..., Any])
Answer = TypeVar("Answer", bound="Message")

_GAP: Final = "  "
_LAST_COLUMN_MIN: Final = 24
_SECOND_LINE_INDENT: Final = 4
_SPACES: Final = {ord("\n"): " ", ord("\t"): " "}
_CONTROL_PICTURES: Final = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
# Unpaired surrogates, which JSON may hold and UTF-8 output cannot.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = {**_CONTROL_PICTURES, **dict.fromkeys(range(0x7F, 0xA0), "�")}


_META: Final = "toolhub.output"
_TEXT_META: Final = "toolhub.text"
_DATA: Final = ("json", "jsonl", "yaml", "name")
FORMATS: Final = (*_DATA, "table", "wide")
# What `-o name` prints of a record: the first of these fields that it has.
_NAMES: Final = ("jobId", "approvalId", "artifactId", "callId", "id", "name", "source", "tool")


def json_option(command: Command) -> Command:
    """Add -o and --json to a command that prints one record: JSON in a pipe, for programs."""
    return _format_options(command, _keep_format, "Output format; default: text on a terminal, json in a pipe.")


def text_option(command: Command) -> Command:
    """Add -o and --json to a command that prints a list or a check: text in a pipe, too."""
    about = "Output format; default: table (plain text), also in a pipe. wide cuts nothing."
    return _format_options(command, _keep_format_of_text, about)


def _format_options(
    command: Command, keep: Callable[[click.Context, click.Parameter, str | None], None], about: str
) -> Command:
    formats = click.option("-o", "--output", type=click.Choice(FORMATS), expose_value=False, callback=keep, help=about)
    return click.option("--json", "as_json", is_flag=True, help="The same as -o json.")(formats(command))


def json_switch(command: Command) -> Command:
    """Add --json alone, for a command in which -o means something else."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, as without a terminal.")(command)


def _keep_format(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        context.meta[_META] = value


def _keep_format_of_text(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_TEXT_META] = True
    _keep_format(context, parameter, value)


def _format() -> str:
    """Return the format that -o names; empty without it."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(_META, "")) if context else ""


def is_wide() -> bool:
    """Return whether everything is to be shown, however wide."""
    return _format() == "wide"


def is_whole() -> bool:
    """Return whether nothing is to be cut or wrapped: with -o wide, and in a pipe, where each row is one line."""
    return is_wide() or not sys.stdout.isatty()


def asks_for_data(as_json: bool) -> bool:
    """Return whether --json or -o requests data."""
    return as_json or _format() in _DATA


def wants_json(as_json: bool) -> bool:
    """Return whether data is wanted instead of text; `print_json` prints it in the requested format."""
    if as_json or _format():
        return asks_for_data(as_json)
    context = click.get_current_context(silent=True)
    return not sys.stdout.isatty() and not (context and context.meta.get(_TEXT_META))


def print_json(value: Any) -> None:
    """Print a value in the format of -o, which is JSON without it."""
    if (wanted := _format()) == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    elif wanted == "jsonl":
        for record in _records(value):
            print_json_line(record)
    elif wanted == "name":
        for record in _records(value):
            click.echo(_name(record))
    else:
        _print_document(value)


def _print_document(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)
    if not text.isascii() and _SURROGATES.search(text):
        text = json.dumps(value, indent=2 if sys.stdout.isatty() else None)
    click.echo(text)


def _records(value: Any) -> list[Any]:
    """Return the records of a list, also those in the lists of a page; else the value itself."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict) or any(field in value for field in _NAMES):
        return [value]
    lists = [each for each in value.values() if isinstance(each, list)]
    return [record for each in lists for record in each if isinstance(record, dict)] if lists else [value]


def _name(record: Any) -> str:
    if not isinstance(record, dict):
        return str(record)
    named = next((record[field] for field in _NAMES if field in record), "")
    return _name(named) if isinstance(named, dict) else str(named)


def print_answer(answer: Answer, as_json: bool, show: Callable[[Answer], object]) -> None:
    """Print a message as JSON if that is wanted, else by `show`."""
    if wants_json(as_json):
        print_json(message_as_json(answer))
    else:
        show(answer)


def print_json_line(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def print_next(record: Any) -> None:
    """Print one record of a stream: as `print_json` would in a list, JSON as one line."""
    wanted = _format()
    if wanted == "yaml":
        click.echo("---")
    if wanted in ("yaml", "name"):
        print_json(record)
    else:
        print_json_line(record)


def can_redraw(*, on_stdout: bool = True) -> bool:
    """Return whether standard output, or standard error, is a terminal that can redraw what it shows."""
    return (sys.stdout if on_stdout else sys.stderr).isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def columns() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size().columns


def legible(text: str) -> str:
    """Return the text with every control character except line ends and tabs made visible."""
    return text.translate(_CONTROLS)


def revealed(text: str) -> str:
    """Like `legible`, with invisible characters named, too: for text that an untrusted party wrote for a model to
    read."""
    from toolhub_service.guards.descriptions import escaped

    return escaped(text)


def first_line(text: str) -> str:
    """Return the first sentence or the first line, whichever is shorter; a remote tool's text is untrusted."""
    return revealed(text.partition(". ")[0].partition("\n")[0].rstrip("."))


def counted(count: int, noun: str) -> str:
    """Return a text such as `1 tool` and `2,000 tools`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counted_of(shown: int, total: int, noun: str, advice: str = "") -> str:
    """Return a text such as `3 jobs`, and `The newest 30 of 45 jobs (advice)` when not all are shown."""
    if shown >= total:
        return counted(total, noun)
    return f"The newest {shown} of {total} {noun}s" + (f" ({advice})" if advice else "")


def span(seconds: float) -> str:
    """Return a text such as `42 min`; never less than `0 s`."""
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def seconds_since(stamp: Timestamp) -> float:
    return time.time() - stamp.ToMilliseconds() / 1_000


def utc(stamp: Timestamp) -> str:
    """Return a text such as `2026-11-24 04:06:26 UTC`."""
    return f"{stamp.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"


def enum_name(message: Message, field: str) -> str:
    """Return a name such as `READY` for SOURCE_STATE_READY; the number, if a newer hub sends an unknown value."""
    declared: Any = message.DESCRIPTOR.fields_by_name[field].enum_type  # None only if the field is no enum
    number = getattr(message, field)
    if number not in declared.values_by_number:
        return str(number)
    name: str = declared.values_by_number[number].name
    return name.removeprefix(declared.values[0].name.removesuffix("UNSPECIFIED"))


@contextmanager
def explaining(*kinds: type[Exception], place: object = "") -> Iterator[None]:
    """End the command with exit code 1 and the message of such an exception; `place`: the file it is about."""
    try:
        yield
    except kinds as reason:
        text = f"{place}: {reason}" if place else str(reason)
        if isinstance(reason, OSError) and reason.strerror:
            text = f"{reason.filename or place}: {reason.strerror}"
        raise click.ClickException(legible(text)) from reason


def note(text: str, *, err: bool = False) -> None:
    """Print a dim line beside the answer."""
    click.secho(text, dim=True, err=err)


def footnote(text: str) -> None:
    """Print a dim line below a list; in a pipe on standard error, so that standard output has only rows."""
    note(text, err=not sys.stdout.isatty())


def print_prose(text: str, indent: str = "", mark: str = "", colour: str | None = None, *, err: bool = False) -> None:
    """Print sentences, wrapped, after a coloured mark; separate lines keep their ends, so that they can be pasted."""
    first, _, rest = legible(text).partition("\n")
    first = f"{mark} {first}" if mark else first
    lines = textwrap.wrap(first, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if mark:
        lines[0] = click.style(mark, fg=colour, bold=colour is None) + lines[0][len(mark) :]
    click.echo("\n".join([*lines, rest] if rest else lines), err=err)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, is_cut: bool = False) -> None:
    """Print a table without borders; the last column wraps to the terminal, or is cut to one line each.

    On a narrow terminal the last columns are on a second line each. In a pipe each row is one line of uncut cells,
    separated by at least two spaces, none of them empty.
    """
    is_pipe = not sys.stdout.isatty()
    shown = [[_cell(cell, is_pipe) for cell in row] for row in rows]
    *fixed, last = [max(map(_width, column)) for column in zip(headings, *shown, strict=True)]
    left = sum(fixed) + len(_GAP) * len(fixed)
    is_narrow = not is_whole() and columns() - left < min(last, _LAST_COLUMN_MIN)
    while is_narrow and len(fixed) > 1 and left - len(_GAP) > columns():
        left -= fixed.pop() + len(_GAP)
    left = _SECOND_LINE_INDENT if is_narrow else left
    room = max(columns() - left, _LAST_COLUMN_MIN)
    for row in (headings, *shown):
        rest = _GAP.join(row[len(fixed) :])
        if is_whole():
            lines = [rest]
        else:
            lines = [_cut(rest, room)] if is_cut else textwrap.wrap(rest, room, break_on_hyphens=False) or [""]
        begin = _line([*row[: len(fixed)], "" if is_narrow else lines.pop(0)], fixed)
        for line in (begin, *(" " * left + more for more in lines if more)):
            click.secho(line, bold=True) if row is headings else click.echo(line)


def _cell(text: str, is_pipe: bool) -> str:
    cell = legible(text).translate(_SPACES)
    return cell or ("–" if is_pipe else "")


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print `name value` lines, the names dim."""
    shown = list(pairs)
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(click.style(name.ljust(width), dim=True) + _GAP + legible(value))


def message_as_json(message: Message) -> dict[str, Any]:
    """Return a message as its canonical JSON (camelCase), with fields named `*_json` as JSON values instead of
    base64."""
    from google.protobuf.json_format import MessageToDict

    return _unfold_fields(message, MessageToDict(message, preserving_proto_field_name=False))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=False)]
    return _GAP.join([*padded, cells[-1]]).rstrip()


def _width(text: str) -> int:
    """Return columns on a terminal: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    import rich.cells  # late: most lines need no table of widths

    return rich.cells.cell_len(text)


def _cut(text: str, room: int) -> str:
    if _width(text) <= room:
        return text
    while text and _width(text) >= room:
        text = text[:-1]
    return text.rstrip(" ,;:") + "…"


def _unfold_fields(message: Message, plain: dict[str, Any]) -> dict[str, Any]:
    """Show `result_json`, `args_json`, … as the JSON they are, not as base64."""
    if "ok" in message.DESCRIPTOR.fields_by_name:
        plain.setdefault("ok", False)  # canonical JSON omits false, which scripts would take for a missing answer
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
