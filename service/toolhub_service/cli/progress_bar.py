"""A call's progress on the terminal: nothing until the first report, gone when the call has ended."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolhub_service.cli.output import legible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from toolhub.v1 import progress_pb2


class ProgressBar:
    """On standard error; drawn by rich, which is imported only when there is something to draw."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, report: progress_pb2.Progress) -> None:
        if self._bar is None or self._task is None:
            self._bar = _drawn()
            self._task = self._bar.add_task(self._title, total=None, told="")
            self._bar.start()
        self._bar.update(self._task, **_state(report))


def _drawn() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    told = TextColumn("{task.fields[told]}", markup=False)
    title = TextColumn("{task.description}", markup=False)
    return Progress(title, BarColumn(), told, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _state(report: progress_pb2.Progress) -> dict[str, Any]:
    total = report.total if report.HasField("total") else None
    told = f"{report.step:,.0f}" + (f"/{total:,.0f}" if total else "") + f" {report.unit}"
    return {"completed": report.step, "total": total, "told": legible(f"{told} {report.message}".strip())}
