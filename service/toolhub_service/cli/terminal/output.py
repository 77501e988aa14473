"""Output: tables and text on a terminal. In a pipe lists and checks are plain text, single records JSON.

No other module of the command line prints. Whatever is printed here passes `guards/foreign_text.py`, because most of it
was written by somebody else: a file or a web page that a tool has read must not be able to control the terminal. Only
`Escaped` text is printed as it is, and only `style` and `join_parts` make it.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

from toolhub_service.guards.foreign_text import escape_hidden

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
# A line end of foreign text would begin a line that imitates one of the command itself.
_LINE_ENDS: Final = {ord("\n"): " ", ord("\t"): " "}
_REST_INDENT: Final = "  "
_QUOTE: Final = "│ "
_LONG_SPACES: Final = re.compile(r"[^\S\n]{17,}")
_RUNS_OF_SPACE: Final = re.compile(r"(?<=\S)\s+")


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
        print_yaml(value)
    elif wanted == "jsonl":
        for record in _records(value):
            print_json_line(record)
    elif wanted == "name":
        for record in _records(value):
            print_line(_name(record))
    else:
        _print_document(value)


def _print_document(value: Any) -> None:
    # Hidden characters are inside strings only, where an escape means the same to every reader of JSON.
    click.echo(escape_hidden(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)))


def print_yaml(value: Any) -> None:
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if escape_hidden(text) != text:
        text = yaml.safe_dump(value, sort_keys=False)  # quotes what it escapes, as plain scalars cannot be escaped
    click.echo(text, nl=False)


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
    click.echo(escape_hidden(json.dumps(value, ensure_ascii=False)))


def print_next(record: Any) -> None:
    """Print one record of a stream: as `print_json` would in a list, JSON as one line."""
    wanted = _format()
    if wanted == "yaml":
        print_line("---")
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


class Escaped(str):
    """Text that is printed as it is: its hidden characters are escaped, and escape sequences in it are ours.

    In an f-string it becomes a plain `str`, whose colours would be escaped: use `joined`.
    """

    __slots__ = ()


def style(text: str, *, fg: str | None = None, bold: bool | None = None, dim: bool | None = None) -> Escaped:
    """Return the text as one line, in a colour."""
    return Escaped(click.style(_as_line(text), fg=fg, bold=bold, dim=dim))


def join_parts(*parts: str) -> Escaped:
    """Return the parts as one line; `Escaped` ones keep their colours."""
    return Escaped("".join(map(_as_line, parts)))


def print_line(*parts: str, err: bool = False, nl: bool = True) -> None:
    """Print the parts as one line, whatever line ends they have; `Escaped` ones keep their colours."""
    click.echo(join_parts(*parts), err=err, nl=nl)


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text that may have several lines."""
    click.echo(escape_hidden(text), err=err, nl=nl)


def print_failure(failed: click.ClickException) -> None:
    """Print a failure that does not end the command, as one that does is printed."""
    print_line("Error: ", failed.format_message(), err=True)


class BinaryOutput(Protocol):
    """What may be written of a file."""

    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...


def binary_output() -> BinaryOutput:
    """Return where bytes of any kind go: standard output exactly, except that a terminal gets them as legible text."""
    return _TerminalBytes() if sys.stdout.isatty() else sys.stdout.buffer


class _TerminalBytes:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes, /) -> int:
        print_text(self._decoder.decode(data), nl=False)
        return len(data)

    def flush(self) -> None:
        print_text(self._decoder.decode(b"", final=True), nl=False)


def _as_line(text: str) -> str:
    return text if isinstance(text, Escaped) else escape_hidden(text).translate(_LINE_ENDS)


def first_line(text: str) -> str:
    """Return the first sentence or the first line, whichever is shorter, as a person may see it."""
    return escape_hidden(text.partition(". ")[0].partition("\n")[0].rstrip("."))


def count_text(count: int, noun: str) -> str:
    """Return a text such as `1 tool` and `2,000 tools`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def count_of_total(shown: int, total: int, noun: str, advice: str = "") -> str:
    """Return a text such as `3 jobs`, and `The newest 30 of 45 jobs (advice)` when not all are shown."""
    if shown >= total:
        return count_text(total, noun)
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
        raise click.ClickException(escape_hidden(text)) from reason


def note(*lines: str, err: bool = False) -> None:
    """Print dim lines beside the answer; empty lines before one stay."""
    for text in lines:
        line = text.lstrip("\n")
        click.echo("\n" * (len(text) - len(line)) + style(line, dim=True), err=err)


def footnote(*lines: str) -> None:
    """Print dim lines below a list; in a pipe on standard error, so that standard output has only rows."""
    note(*lines, err=not sys.stdout.isatty())


def print_prose(text: str, indent: str = "", mark: str = "", colour: str | None = None, *, err: bool = False) -> None:
    """Print sentences, wrapped, after a coloured mark; separate lines keep their ends, so that they can be pasted, and
    are indented, so that none of them can pass for a line of the command."""
    first, _, rest = escape_hidden(text).partition("\n")
    first = f"{mark} {first}" if mark else first
    lines = textwrap.wrap(first, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if mark:
        lines[0] = click.style(mark, fg=colour, bold=colour is None) + lines[0][len(mark) :]
    click.echo("\n".join([*lines, textwrap.indent(rest, indent or _REST_INDENT)] if rest else lines), err=err)


def print_quoted(text: str) -> None:
    """Print foreign text with a mark before each line, so that none of it can pass for a line of the command.

    Runs of empty lines and of spaces are shown as their number: they would push what follows out of sight.
    """
    for line in quote_lines(text, None if is_whole() else columns()):
        print_line(line)


def quote_lines(text: str, width: int | None) -> Iterator[str]:
    """Yield the lines of `print_quoted`, of at most `width` columns each."""
    room = None if width is None else max(width - len(_QUOTE), _LAST_COLUMN_MIN)
    shown = _LONG_SPACES.sub(lambda run: f" ⟨{len(run.group()):,} spaces⟩ ", escape_hidden(text.rstrip()))
    empty = 0
    for line in shown.replace("\t", "    ").split("\n"):
        if not line.strip():
            empty += 1
            continue
        if empty:
            yield _QUOTE + (f"⟨{empty:,} empty lines⟩" if empty > 1 else "")
        empty = 0
        yield from (_QUOTE + piece for piece in ([line] if room is None else _wrap(line, room)))


def _wrap(line: str, room: int) -> Iterator[str]:
    """Yield pieces of at most so many columns, split at spaces where there are some."""
    while _width(line) > room:
        size = _fitting_chars(line, room)
        at = line.rfind(" ", room // 2, size) + 1 or size
        yield line[:at]
        line = line[at:]
    yield line


def _fitting_chars(line: str, room: int) -> int:
    if line.isascii():
        return room
    left = room
    for at, char in enumerate(line):
        left -= _width(char)
        if left < 0:
            return max(at, 1)
    return len(line)


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
            click.echo(click.style(line, bold=True) if row is headings else line)


def _cell(text: str, is_pipe: bool) -> str:
    # Two spaces separate columns: a run of them in a cell would imitate another column.
    cell = _RUNS_OF_SPACE.sub(" ", _as_line(text)).rstrip()
    return cell or ("–" if is_pipe else "")


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print `name value` lines, the names dim."""
    shown = list(pairs)
    width = max((len(_as_line(name)) for name, _ in shown), default=0)
    for name, value in shown:
        print_line(style(_as_line(name).ljust(width), dim=True), _GAP, value)


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
