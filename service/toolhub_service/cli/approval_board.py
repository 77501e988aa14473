"""What waits for a person, live on a terminal: changes scroll by above, the time that is left runs below."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from toolhub.v1 import approval_pb2
from toolhub_service.cli.approval_view import HEADINGS, is_pending, line, row
from toolhub_service.cli.output import legible

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_ROWS_MAX = 20


class Board:
    """On standard output, drawn by rich."""

    def __init__(self) -> None:
        self._pending: dict[str, approval_pb2.Approval] = {}
        self._trouble = ""
        self._live: Live = _live(self)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, approval: approval_pb2.Approval) -> None:
        from rich.text import Text

        self._pending.pop(approval.approval_id, None)
        if is_pending(approval):
            self._pending[approval.approval_id] = approval
        self._live.console.print(Text.from_ansi(line(approval)), soft_wrap=True)
        self._live.refresh()

    def lost(self, pause_s: float) -> None:
        self._trouble = f"the hub does not answer; asking again in {pause_s:.1f} s"
        self._live.refresh()

    def found(self) -> None:
        self._trouble = ""
        self._live.refresh()

    def table(self) -> Table:
        """The board as it stands now."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, caption=self._caption(), caption_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, no_wrap=True, overflow="ellipsis")
        for approval in list(self._pending.values())[-_ROWS_MAX:]:
            table.add_row(*(Text(legible(cell)) for cell in row(approval)))
        return table

    def _caption(self) -> str:
        if self._trouble:
            return self._trouble
        count = len(self._pending)
        return f"{count} {'waits' if count == 1 else 'wait'} · toolhub approvals show|approve|deny ID · Ctrl-C ends"


def _live(board: Board) -> Live:
    from rich.console import Console
    from rich.live import Live

    return Live(get_renderable=board.table, console=Console(), refresh_per_second=2, transient=True)
