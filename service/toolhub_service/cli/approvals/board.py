"""The live table of pending approvals, and the keys that decide them."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolhub.v1 import approval_pb2
from toolhub_service.cli.approvals.view import is_pending, line, request_text, row
from toolhub_service.cli.connection.watching import outage_text
from toolhub_service.cli.terminal.output import columns, quote_lines
from toolhub_service.guards.foreign_text import on_one_line

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

_ROWS_MAX = 20
# An id is shown in full. Below this width the tool gets the remaining columns, and only the selected approval's
# arguments are shown.
_WIDE_COLUMNS = 120
_LEFT_COLUMNS = 6
_WHO_COLUMNS = (12, 16)
_TOOL_COLUMNS = 28
_PURPOSE_LINES_MAX = 2
_REQUEST_LINES_MAX = 6


class LiveTable:
    """Approvals on a terminal, drawn by rich: decisions scroll above, the pending ones with their time left below."""

    def __init__(self, *, has_keys: bool = False) -> None:
        """`has_keys`: the keys of the hint are read, and one approval is selected."""
        self._pending: dict[str, approval_pb2.Approval] = {}
        self._has_keys = has_keys
        self._selected = ""
        self._outage = ""
        self._live = self._new_live()

    def _new_live(self) -> Live:
        from rich.console import Console  # here, because it is slow to import and most commands draw nothing
        from rich.live import Live

        return Live(get_renderable=self.render, console=Console(), refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Draw nothing inside the block."""
        self._live.stop()
        try:
            yield
        finally:
            self._live = self._new_live()  # the former one would begin by erasing as many lines as it had drawn
            self._live.start()

    def show(self, approval: approval_pb2.Approval) -> None:
        from rich.text import Text

        self._pending.pop(approval.approval_id, None)
        if is_pending(approval):
            self._pending[approval.approval_id] = approval
        else:
            self._live.console.print(Text.from_ansi(line(approval)), soft_wrap=True)
        self._live.refresh()

    def show_outage(self, pause_s: float) -> None:
        self._outage = outage_text(pause_s)
        self._live.refresh()

    def end_outage(self) -> None:
        self._outage = ""
        self._live.refresh()

    @property
    def selected_id(self) -> str:
        """Return the ID of the approval that keys apply to: the selected one while it is shown, else the first; or
        empty."""
        shown = self._newest()
        return self._selected if self._selected in shown else next(iter(shown), "")

    def select(self, step: int) -> None:
        """Select the approval so many rows further down."""
        shown = list(self._newest())
        if shown:
            at = shown.index(self.selected_id) + step
            self._selected = shown[min(max(at, 0), len(shown) - 1)]
            self._live.refresh()

    def render(self) -> Group:
        """Return the current table, and the arguments of the selected approval."""
        from rich.console import Group
        from rich.text import Text

        shown, selected = self._newest(), self.selected_id if self._has_keys else ""
        parts: list[Table | Text] = [self._table(shown, selected)] if shown else []
        if selected:
            parts += self._request(shown[selected])
        keys = "↑↓ select · a approve · d deny · q quit" if self._has_keys else "Ctrl-C to stop"
        parts.append(Text(self._outage or f"{len(self._pending)} pending · {keys}", style="dim italic"))
        return Group(*parts)

    def _request(self, approval: approval_pb2.Approval) -> list[Text]:
        """Return what is asked for, as far as there is room; the arguments, which are decided, come last."""
        from rich.text import Text

        parts: list[Text] = []
        purposed = f"purpose: {on_one_line(approval.purpose) or '–'}"
        for text, lines_max in ((purposed, _PURPOSE_LINES_MAX), (request_text(approval), _REQUEST_LINES_MAX)):
            lines = list(quote_lines(text, columns()))
            parts += map(Text, lines[:lines_max])
            if len(lines) > lines_max:
                parts.append(Text("  …", style="dim"))
        return parts

    def _newest(self) -> dict[str, approval_pb2.Approval]:
        # The newest: they must fit the screen, or redrawing would leave lines behind.
        return dict(list(self._pending.items())[-_ROWS_MAX:])

    def _table(self, shown: Mapping[str, approval_pb2.Approval], selected: str) -> Table:
        from rich.table import Table
        from rich.text import Text

        is_wide = columns() >= _WIDE_COLUMNS
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
        table.add_column("  APPROVAL" if selected else "APPROVAL", no_wrap=True, min_width=2 + max(map(len, shown)))
        table.add_column("LEFT", no_wrap=True, min_width=_LEFT_COLUMNS)
        table.add_column("WHO", no_wrap=True, width=_WHO_COLUMNS[is_wide])
        if is_wide:
            table.add_column("TOOL", no_wrap=True, width=_TOOL_COLUMNS)
        table.add_column("ARGUMENTS" if is_wide else "TOOL", no_wrap=True, ratio=1)
        for approval in shown.values():
            id, _, left, _, who, tool, _, args = map(on_one_line, row(approval))
            mark = "" if not selected else "› " if id == selected else "  "
            # A narrow table has one column less.
            words = [mark + id, left, who, tool, args][: len(table.columns)]
            table.add_row(*map(Text, words), style="bold" if id == selected else "")
        return table


_KEYS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}
_ESCAPE = b"\x1b"


class Keyboard:
    """The keys typed at the terminal, one at a time and without echo; none when standard input is no terminal."""

    def __init__(self) -> None:
        self.is_there = sys.stdin.isatty()
        self._usual: list[Any] = termios.tcgetattr(sys.stdin) if self.is_there else []

    def __enter__(self) -> Self:
        if self.is_there:
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_there:
            # Earlier input is dropped, so that no question is answered before it was read.
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, self._usual)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Restore line input inside the block."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def next(self, wakes: int) -> str:
        """Return the next key, such as `a` or `up`; empty when `wakes` can be read first."""
        while True:
            ready, _, _ = select.select([wakes, *([sys.stdin] if self.is_there else [])], [], [])
            if wakes in ready:
                return ""
            # By the descriptor: Python's buffer would read more bytes, which `select` then would not report.
            typed = os.read(sys.stdin.fileno(), 1)
            # The bytes of an arrow key arrive together; Escape alone has none after it.
            if typed == _ESCAPE and select.select([sys.stdin], [], [], 0)[0]:
                typed += os.read(sys.stdin.fileno(), 2)
            if not typed:  # the terminal is gone
                raise KeyboardInterrupt
            return _KEYS.get(typed, typed.decode(errors="replace"))
