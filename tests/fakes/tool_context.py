"""Surroundings for running one tool by itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from toolhub_service.domain.result import Chunk, Progress
from toolhub_service.domain.verdict import Constraints, EgressRule, Sandbox
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.workspace.workspace import Workspace


@dataclass
class RecordingSink:
    """Keeps what an execution reports."""

    reports: list[Progress] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        self.reports.append(progress)

    def chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


def egress_context(
    *egress: EgressRule,
    timeout_s: float = 10.0,
    folder: Path | None = None,
    sandbox: Sandbox | None = None,
    sink: RecordingSink | None = None,
) -> ToolContext:
    """A context under these egress rules; `folder` becomes the workspace."""
    return ToolContext(
        call_id="call-1",
        principal_id="tester",
        request_id="request-1",
        deadline_s=asyncio.get_running_loop().time() + timeout_s,
        constraints=Constraints(egress=egress, sandbox=sandbox or Sandbox()),
        sink=sink or RecordingSink(),
        open_workspace=lambda: Workspace(str(folder)),
    )
