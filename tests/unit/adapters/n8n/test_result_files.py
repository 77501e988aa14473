"""Files of a workflow's result: artifacts where n8n serves them, reported where it does not."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.artifacts import ArtifactsHarness, kept_in
from tests.fakes.n8n import How
from tests.unit.adapters.n8n.flows import NAMES_ITSELF, code, flow
from tests.unit.adapters.n8n.n8n_harness import ASYNC, JOB_ID, SYNC, N8nHarness, n8n_harness
from toolhub_service.adapters.n8n.result_files import FILES_MAX
from toolhub_service.domain.result import Outcome

PICTURE = b"\x89PNG\xff\x00"
SHA256 = hashlib.sha256(PICTURE).hexdigest()
INLINE = {"mimeType": "image/png", "fileName": "a.png", "data": base64.b64encode(PICTURE).decode(), "fileSize": "6 B"}
ON_DISK = {
    "mimeType": "application/pdf",
    "fileName": "report.pdf",
    "data": "filesystem-v2",
    "id": "filesystem-v2:workflows/w/executions/7/binary_data/1",
    "fileSize": "12 kB",
    "bytes": 12_000,
}
"""As n8n 2.8.4 keeps files by default."""


@asynccontextmanager
async def giving(*items: dict[str, Any], kept: ArtifactsHarness | None = None) -> AsyncIterator[N8nHarness]:
    """A workflow whose last node gives these items."""
    flows = [flow("made", "responseNode", NAMES_ITSELF, code("Make")), flow("asked", "lastNode", code("Make"))]
    artifacts = kept.artifacts if kept else None
    async with n8n_harness({"made": ASYNC, "asked": SYNC}, flows=flows, artifacts=artifacts) as harness:
        harness.n8n.code("Make", lambda _, __: list(items))
        yield harness


async def ran(harness: N8nHarness, name: str = "made") -> Outcome:
    outcome = await harness.run(name, job_id=JOB_ID if name == "made" else "")
    assert isinstance(outcome, Outcome), outcome.message
    return outcome


def evidence_text(outcome: Outcome) -> str:
    return " ".join(proof.summary for proof in outcome.evidence)


async def test_a_file_that_is_in_the_execution_becomes_an_artifact(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    async with giving({"json": {"n": 1}, "binary": {"data": INLINE}}, kept=kept) as harness:
        outcome = await ran(harness)
    assert outcome.value == {"n": 1}
    (ref,) = outcome.artifacts
    assert (ref.media_type, ref.size_bytes, ref.sha256) == ("image/png", 6, SHA256)
    assert (ref.artifact_id, SHA256) in [(proof.ref, proof.sha256) for proof in outcome.evidence]
    assert not outcome.truncated


async def test_an_item_that_is_nothing_but_files_is_where_these_are(tmp_path: Path) -> None:
    items: list[dict[str, Any]] = [
        {"json": {}, "binary": {"data": INLINE}},
        {"json": {"n": 2}},
        {"json": {}, "binary": {"report": ON_DISK}},
    ]
    async with giving(*items, kept=kept_in(tmp_path)) as harness:
        outcome = await ran(harness)
    value: Any = outcome.value
    assert value[0]["data"]["artifact"] == outcome.artifacts[0].artifact_id
    assert value[1] == {"n": 2}
    assert value[2]["report"]["filename"] == "report.pdf"
    assert "stays in n8n" in value[2]["report"]["dropped"]


async def test_a_file_that_n8n_does_not_serve_is_reported_by_name(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    async with giving({"json": {"n": 1}, "binary": {"report": ON_DISK}}, kept=kept) as harness:
        outcome = await ran(harness)
        (began,) = harness.n8n.executions.began
    assert (outcome.value, outcome.artifacts, outcome.truncated) == ({"n": 1}, (), True)
    assert f"`report` of item 1 (report.pdf, application/pdf, 12 kB). See execution {began.id}" in evidence_text(
        outcome
    )
    assert kept.records.found == {}


async def test_without_a_place_for_artifacts_files_are_reported_as_missing() -> None:
    async with giving({"json": {}, "binary": {"data": INLINE}}) as harness:
        outcome = await ran(harness)
    value: Any = outcome.value
    assert (value["data"]["sha256"], value["data"]["dropped"]) == (SHA256, "this hub stores no artifacts")
    assert outcome.truncated


async def test_the_execution_of_an_answer_that_was_lost_has_its_files_too(tmp_path: Path) -> None:
    async with giving({"json": {}, "binary": {"data": INLINE}}, kept=kept_in(tmp_path)) as harness:
        harness.n8n.fails("/webhook/*", How.LOSE_ANSWER)
        outcome = await ran(harness, "asked")
    assert [ref.sha256 for ref in outcome.artifacts] == [SHA256]


async def test_invalid_base64_is_reported_as_missing(tmp_path: Path) -> None:
    broken = {**INLINE, "data": "%%%", "mimeType": "not a type", "fileName": 7}
    async with giving({"json": {}, "binary": {"data": broken, "other": "nothing"}}, kept=kept_in(tmp_path)) as harness:
        outcome = await ran(harness)
    assert outcome.truncated
    assert "`data` of item 1 (not a type, 6 B)" in evidence_text(outcome)


async def test_more_files_than_are_kept_are_counted(tmp_path: Path) -> None:
    items = [{"json": {"n": n}, "binary": {"data": INLINE}} for n in range(FILES_MAX + 3)]
    async with giving(*items, kept=kept_in(tmp_path)) as harness:
        outcome = await ran(harness)
    assert len(outcome.artifacts) == FILES_MAX
    assert "3 more" in evidence_text(outcome)


async def test_names_of_files_are_redacted_and_cut(tmp_path: Path) -> None:
    named = {**ON_DISK, "fileName": "s3cret " + "x" * 500}
    async with giving({"json": {"n": 1}, "binary": {"data": named}}, kept=kept_in(tmp_path)) as harness:
        outcome = await ran(harness)
    assert "s3cret" not in evidence_text(outcome)
    assert "x" * 200 not in evidence_text(outcome)
