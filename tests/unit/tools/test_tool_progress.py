"""What a tool reports while it runs: the common fields, and a form of its own that callers read as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from tests.fakes.tool_context import RecordingSink, egress_context
from tests.hub import CALL_TIMEOUT_S, request, running_hub
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext, ToolProgress
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class ImportProgress(ToolProgress, frozen=True):
    current_file: str
    rejected_rows: int = 0


class ImportIn(ToolInput, frozen=True):
    file: str


class ImportOut(ToolOutput, frozen=True):
    rows: int


class ImportRows(Tool[ImportIn, ImportOut, ImportProgress]):
    name = "acme/rows.import"
    description = "Import rows."
    annotations: ClassVar[Annotations] = Annotations(read_only=True, supports_progress=True)
    In, Out = ImportIn, ImportOut

    async def run(self, args: ImportIn, context: ToolContext[ImportProgress]) -> ImportOut:
        context.report(
            ImportProgress(step=2, total=8, unit="rows", message="reads", current_file=args.file, rejected_rows=1)
        )
        return ImportOut(rows=8)


async def test_a_watcher_of_a_call_reads_the_progress_in_the_tools_own_form(tmp_path: Path) -> None:
    async with running_hub(tmp_path, tools=[ImportRows()]) as hub:
        call = hub.stub.InvokeStream(request("acme/rows.import", {"file": "a.csv"}), timeout=CALL_TIMEOUT_S)
        reports = [event.progress async for event in call if event.WhichOneof("event") == "progress"]
        assert [(report.step, report.total, report.unit, report.message) for report in reports] == [
            (2, 8, "rows", "reads")
        ]
        assert json.loads(reports[0].details_json) == {"currentFile": "a.csv", "rejectedRows": 1}


async def test_a_job_keeps_the_details_unless_they_hold_a_secret(tmp_path: Path) -> None:
    async with running_hub(tmp_path, tools=[ImportRows()]) as hub:
        for file, kept in (("a.csv", True), ("postgres://ann:hunter2secret@db/x", False)):
            job = await hub.submit("acme/rows.import", {"file": file})
            entries = await hub.watched(job.job_id)
            reported = [entry.progress.details_json for entry in entries if entry.progress.step == 2]
            assert bool(reported[-1]) is kept, file


def test_plain_progress_has_no_details_and_knows_its_percentage() -> None:
    assert ToolProgress(step=3).as_progress().details_json == b""
    assert ToolProgress(step=3).percentage == 0
    assert ToolProgress(step=3, total=4).percentage == 75
    assert ToolProgress(step=9, total=4).percentage == 100


def test_details_that_are_too_long_are_left_out_and_the_rest_is_reported() -> None:
    progress = ImportProgress(step=1, current_file="x" * 5_000).as_progress()
    assert (progress.step, progress.details_json) == (1, b"")


async def test_a_tool_without_a_form_of_its_own_reports_the_common_one() -> None:
    sink = RecordingSink()
    egress_context(sink=sink).report(ToolProgress(step=1, eta_s=2.5))
    assert sink.reports[-1].eta_s == 2.5
