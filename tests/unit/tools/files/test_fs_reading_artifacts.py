"""readText of a file beyond its bound: the text is cut, and the whole file is an artifact beside it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.artifacts import ArtifactsHarness, a_call, kept_in, whole
from tests.fakes.file_calls import RecordingSink, descriptors
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.verdict import Constraints
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.tools import ReadText
from toolhub_service.tools.workspace.workspace import Workspace

LARGE = b"line of text\n" * 300_000
"""3.9 MB: several chunks."""


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[ArtifactsHarness]:
    found = kept_in(tmp_path / "blobs")
    yield found
    await found.blobs.close()


def context_of(kept: ArtifactsHarness | None, tmp_path: Path) -> ToolContext:
    return ToolContext(
        call_id="call-1",
        principal_id="agent-a",
        request_id="request-1",
        deadline_s=0.0,
        constraints=Constraints(),
        sink=RecordingSink(),
        open_workspace=lambda: Workspace(str(tmp_path / "work")),
        call=a_call(),
        artifact_service=kept.artifacts if kept else None,
    )


async def read(context: ToolContext, tmp_path: Path, content: bytes, **args: Any) -> ReadText.Out:
    file = tmp_path / "work" / "logs" / "big.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    try:
        return await ReadText().run(msgspec.convert({"path": "logs/big.log", **args}, ReadText.In), context)
    finally:
        context.close()


async def test_file_beyond_max_bytes_is_cut_and_kept_whole(kept: ArtifactsHarness, tmp_path: Path) -> None:
    context = context_of(kept, tmp_path)
    out = await read(context, tmp_path, LARGE, maxBytes=1024)
    (ref,) = context.artifacts
    artifact = await kept.artifacts.open("agent-a", ref.artifact_id)
    assert (out.truncated, len(out.text.encode()) <= 1024) == (True, True)
    assert (ref.name, ref.media_type, ref.size_bytes) == ("big.log", "text/plain", len(LARGE))
    assert (artifact.call_id, artifact.task_id) == ("call-1", "task-1")
    assert await whole(kept.artifacts, artifact) == LARGE
    digest = hashlib.sha256(LARGE).hexdigest()
    assert [evidence.sha256 for evidence in context.evidence] == [digest, digest]
    assert ref.artifact_id in context.evidence[1].summary


async def test_file_within_max_bytes_makes_no_artifact(kept: ArtifactsHarness, tmp_path: Path) -> None:
    context = context_of(kept, tmp_path)
    await read(context, tmp_path, b"short\n")
    await read(context, tmp_path, LARGE, startLine=1, endLine=3)
    assert (context.artifacts, kept.records.found, kept.files()) == ([], {}, [])


async def test_hub_without_artifacts_cuts_as_before(tmp_path: Path) -> None:
    context = context_of(None, tmp_path)
    out = await read(context, tmp_path, LARGE, maxBytes=1024)
    assert out.truncated
    assert (context.artifacts, len(context.evidence)) == ([], 1)


@pytest.mark.parametrize(
    ("terms", "why"), [({"max_bytes": 1_000_000}, "FILE_TOO_LARGE"), ({"quota_bytes": 1_000_000}, "BUDGET_EXCEEDED")]
)
async def test_file_beyond_cap_or_quota_is_read_anyway(tmp_path: Path, terms: dict[str, int], why: str) -> None:
    kept = kept_in(tmp_path / "blobs", **terms)
    context = context_of(kept, tmp_path)
    out = await read(context, tmp_path, LARGE, maxBytes=1024)
    assert out.truncated
    assert context.evidence[-1].summary == f"the whole file could not be kept as an artifact: {why}"
    assert (context.artifacts, kept.files()) == ([], [])


async def test_store_that_fails_leaves_no_descriptor_open(
    kept: ArtifactsHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses() -> Any:
        raise refuse(ErrorKind.IO_ERROR, "The disk says no. Try again.")

    before = descriptors()
    monkeypatch.setattr(kept.blobs, "writer", refuses)
    await read(context_of(kept, tmp_path), tmp_path, LARGE, maxBytes=1024)
    assert descriptors() == before
