"""Output: tables and text on a terminal, JSON in a pipe or with --json.

Whatever a hub sends is shown with its control characters made visible: a file or a web page that a tool has read must
not be able to drive the terminal it is shown on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.progress import Progress, TaskID

    from toolhub.v1 import progress_pb2


# The progress of running work: its pace and the time left, as text and as a bar on the terminal.
# The rate is that of the last ten seconds of reports, by the clock that stamped them: reports that arrive together
# after a broken connection do not look fast. Work that is run again begins at a smaller step, and the rate begins anew.

_WINDOW_S = 10.0
_MOST = 512
_BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB")


class Pace:
    """The rate of one job or call, and the time it still needs."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def add(self, report: progress_pb2.Progress, at_s: float) -> None:
        if self._reports and report.step < self._reports[-1][1]:
            self._reports.clear()
        self._reports.append((at_s, report.step))
        while len(self._reports) > 2 and at_s - self._reports[0][0] > _WINDOW_S:
            self._reports.popleft()

    def reset(self) -> None:
        """Forget the reports so far: the work was interrupted."""
        self._reports.clear()

    @property
    def rate(self) -> float | None:
        """Units a second; None before the second report and while the step does not change."""
        if len(self._reports) < 2:
            return None
        (from_s, first), (to_s, last) = self._reports[0], self._reports[-1]
        return (last - first) / (to_s - from_s) if to_s > from_s and last > first else None

    def left_s(self, report: progress_pb2.Progress) -> float | None:
        """Seconds to the end: the tool's own estimate, else from the rate; None when unknown."""
        if report.HasField("eta"):
            return report.eta.ToMilliseconds() / 1_000
        rate = self.rate
        return max(report.total - report.step, 0.0) / rate if rate and report.HasField("total") else None


def amount(value: float, unit: str) -> str:
    """Such as `1,204 rows` and `12.3 MB`; a value alone where the unit is not known."""
    if unit == "bytes":
        return _bytes(value)
    number = f"{value:,.0f}" if value % 1 == 0 or value >= 100 else f"{value:.1f}"
    return f"{number} {unit}".rstrip()


def progress_text(report: progress_pb2.Progress, pace: Pace) -> str:
    """A report as text: done, rate, time left and the tool's message."""
    rate, left_s = pace.rate, pace.left_s(report)
    speed = "" if rate is None else f"{amount(rate, report.unit)}/s"
    left = f"{clock(left_s)} left" if left_s else ""
    return " · ".join(part for part in (percent(report), done(report), speed, left, report.message) if part)


def done(report: progress_pb2.Progress) -> str:
    """Such as `12 of 40 files`."""
    if not report.HasField("total"):
        return amount(report.step, report.unit)
    unit = "" if report.unit != "bytes" else report.unit
    return f"{amount(report.step, unit)} of {amount(report.total, report.unit)}"


def percent(report: progress_pb2.Progress) -> str:
    """Such as `45 %`, never 100 before the end; empty when the total is unknown."""
    if not report.HasField("total") or report.total <= 0:
        return ""
    return f"{min(int(report.step * 100 / report.total), 100)} %"


def clock(seconds: float) -> str:
    """Such as `01:13` and `2:00:05`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def _bytes(value: float) -> str:
    size = value
    for unit in _BYTE_UNITS[:-1]:
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:,.1f} {_BYTE_UNITS[-1]}"


_BAR_COLUMNS = 24


class ProgressBar:
    """Drawn by rich, which is imported only with the first report or `rename`, and only on a terminal."""

    def __init__(self, title: str, *, on_stdout: bool = False) -> None:
        """On standard error, or on standard output; other lines for it then go through `above`."""
        self._title = title
        self._on_stdout = on_stdout
        self._is_drawn = can_redraw(on_stdout=on_stdout)
        self._pace = Pace()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, report: progress_pb2.Progress, at_s: float | None = None) -> None:
        """`at_s`: when the report was made, by any one clock; default: now."""
        self._pace.add(report, time.monotonic() if at_s is None else at_s)
        total = report.total if report.HasField("total") else None
        self._update(completed=report.step, total=total, text=legible(progress_text(report, self._pace)))

    def reset(self) -> None:
        """Compute the rate from the next reports only."""
        self._pace.reset()

    def rename(self, title: str) -> None:
        """Change the title."""
        self._title = title
        self._update(description=legible(title))

    def above(self, line: str) -> None:
        """Print a line above the bar; it may hold colours."""
        if self._bar is None:
            click.echo(line, err=not self._on_stdout)
            return
        from rich.text import Text

        self._bar.console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        """Remove the bar; the next report draws another."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _update(self, **state: Any) -> None:
        if not self._is_drawn:
            return
        if self._bar is None or self._task is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            text = TextColumn("{task.fields[text]}", markup=False)
            title = TextColumn("{task.description}", markup=False)
            console = Console(stderr=not self._on_stdout)
            self._bar = Progress(title, BarColumn(_BAR_COLUMNS), text, console=console, transient=True)
            self._task = self._bar.add_task(legible(self._title), total=None, text="")
            self._bar.start()
        self._bar.update(self._task, **state)


# What a command exits with when the hub refused, a check failed or something else went wrong; wrong usage is click's 2.
EXIT_REFUSED = 1

Command = TypeVar("Command", bound=Callable[..., Any])
Answer = TypeVar("Answer", bound="Message")

_GAP: Final = "  "
_LAST_COLUMN_MIN: Final = 24
_SECOND_LINE_INDENT: Final = 4
_CONTROL_PICTURES: Final = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
# Unpaired surrogates, which JSON may hold and UTF-8 output cannot.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = {**_CONTROL_PICTURES, **dict.fromkeys(range(0x7F, 0xA0), "�")}


def json_option(command: Command) -> Command:
    text = "Print JSON. This is the default when the output is not a terminal."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def wants_json(as_json: bool) -> bool:
    return as_json or not sys.stdout.isatty()


def print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)
    if not text.isascii() and _SURROGATES.search(text):
        text = json.dumps(value, indent=2 if sys.stdout.isatty() else None)
    click.echo(text)


def print_answer(answer: Answer, as_json: bool, show: Callable[[Answer], object]) -> None:
    """Print a message as JSON where that is wanted, else by `show`."""
    if wants_json(as_json):
        print_json(message_as_json(answer))
    else:
        show(answer)


def print_json_line(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def can_redraw(*, on_stdout: bool = True) -> bool:
    """Whether standard output, or standard error, is a terminal that can draw over what it shows."""
    return (sys.stdout if on_stdout else sys.stderr).isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


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
    """Such as `1 tool` and `2,000 tools`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counted_of(shown: int, total: int, noun: str, advice: str = "") -> str:
    """Such as `3 jobs`, and `The newest 30 of 45 jobs (advice)` when not all are shown."""
    if shown >= total:
        return counted(total, noun)
    return f"The newest {shown} of {total} {noun}s" + (f" ({advice})" if advice else "")


def span(seconds: float) -> str:
    """Such as `42 min`; never less than `0 s`."""
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def seconds_since(stamp: Timestamp) -> float:
    return time.time() - stamp.ToMilliseconds() / 1_000


def utc(stamp: Timestamp) -> str:
    """Such as `2026-11-24 04:06:26 UTC`."""
    return f"{stamp.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"


def enum_name(message: Message, field: str) -> str:
    """Such as `READY` for SOURCE_STATE_READY; the number, where a newer hub sends a value that is unknown here."""
    declared: Any = message.DESCRIPTOR.fields_by_name[field].enum_type  # None only where the field is no enum
    number = getattr(message, field)
    if number not in declared.values_by_number:
        return str(number)
    name: str = declared.values_by_number[number].name
    return name.removeprefix(declared.values[0].name.removesuffix("UNSPECIFIED"))


@contextmanager
def explaining(*kinds: type[Exception], place: object = "") -> Iterator[None]:
    """End the command with exit code 1 and the message of such an exception; `place`: the file that it is about."""
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


def print_prose(text: str, indent: str = "", mark: str = "", colour: str | None = None) -> None:
    """Sentences, wrapped, after a coloured mark; lines of their own keep their ends, so that they can be pasted."""
    first, _, rest = legible(text).partition("\n")
    first = f"{mark} {first}" if mark else first
    lines = textwrap.wrap(first, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if mark:
        lines[0] = click.style(mark, fg=colour, bold=colour is None) + lines[0][len(mark) :]
    click.echo("\n".join([*lines, rest] if rest else lines))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, is_cut: bool = False) -> None:
    """A table without borders; the last column wraps to the terminal, or is cut to one line each.

    On a narrow terminal the last columns stand on a second line each.
    """
    shown = [[legible(cell) for cell in row] for row in rows]
    *fixed, _ = [max(map(_width, column)) for column in zip(headings, *shown, strict=True)]
    left = sum(fixed) + len(_GAP) * len(fixed)
    is_narrow = columns() - left < _LAST_COLUMN_MIN
    while is_narrow and len(fixed) > 1 and left - len(_GAP) > columns():
        left -= fixed.pop() + len(_GAP)
    left = _SECOND_LINE_INDENT if is_narrow else left
    room = max(columns() - left, _LAST_COLUMN_MIN)
    for row in (headings, *shown):
        rest = _GAP.join(row[len(fixed) :])
        lines = [_cut(rest, room)] if is_cut else textwrap.wrap(rest, room, break_on_hyphens=False) or [""]
        begin = _line([*row[: len(fixed)], "" if is_narrow else lines.pop(0)], fixed)
        for line in (begin, *(" " * left + more for more in lines if more)):
            click.secho(line, bold=True) if row is headings else click.echo(line)


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
    import rich.cells  # late: most lines need no table of widths

    return rich.cells.cell_len(text)


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
