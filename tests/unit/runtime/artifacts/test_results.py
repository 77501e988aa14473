"""The whole of a cut result: kept beside the answer, and never at the price of the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.artifacts import ArtifactsHarness, a_call, kept_in, whole
from tests.fakes.clock import ManualClock
from tests.unit.runtime.pipeline_harness import RecordingObserver, a_tool, state_of
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.result import EvidenceType, Outcome, ToolResult
from toolhub_service.domain.tool import ToolLimits
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.attach_evidence import attach_evidence
from toolhub_service.runtime.long_results.keep_whole import keep_whole
from toolhub_service.schema.canonical_json import dumps

CAP = 400
SMALL = a_tool("test/small", limits=ToolLimits(max_result_bytes=CAP))
VALUE: dict[str, Any] = {"text": "x" * 10_000, "password": "hunter2-canary"}


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[ArtifactsHarness]:
    found = kept_in(tmp_path / "blobs")
    yield found
    await found.blobs.close()


async def attached(value: Any, call: Call) -> tuple[ToolResult, bytes | None]:
    state = state_of(call)
    state.spec = SMALL
    return await attach_evidence(state, Outcome(value), ManualClock(), Redactor(), show_raw=False)


async def answered(kept: ArtifactsHarness, call: Call, observer: RecordingObserver) -> ToolResult:
    result, rest = await attached(VALUE, call)
    assert rest == dumps(VALUE)
    return await keep_whole(result, rest, call, kept.artifacts, observer)


async def test_result_within_its_limit_has_nothing_to_keep() -> None:
    result, rest = await attached({"text": "x"}, a_call())
    assert rest is None
    assert not result.truncated


async def test_cut_result_goes_out_with_the_artifact_of_the_whole(kept: ArtifactsHarness) -> None:
    observer = RecordingObserver([])
    result = await answered(kept, a_call(), observer)
    (ref,) = result.artifacts
    assert result.truncated
    assert len(dumps(result.value)) <= CAP
    assert await whole(kept.artifacts, await kept.artifacts.open("agent-a", ref.artifact_id)) == dumps(VALUE)
    cut = result.evidence[-1]
    assert (cut.type, cut.sha256) == (EvidenceType.METRIC, ref.sha256)
    assert ref.artifact_id in cut.summary
    assert observer.crashes == []


async def test_secret_in_a_result_stands_in_its_value_and_nowhere_beside(kept: ArtifactsHarness) -> None:
    """The value is the caller's own and is given as it is, cut or whole; nothing else of the answer repeats it."""
    result = await answered(kept, a_call(), RecordingObserver([]))
    assert b"hunter2-canary" in dumps(VALUE)
    assert "hunter2-canary" not in repr(result._replace(value=None))
    assert "hunter2-canary" not in repr(kept.records.found)
    (ref,) = result.artifacts
    with pytest.raises(ToolFailure):
        await kept.artifacts.open("agent-b", ref.artifact_id)


@pytest.mark.parametrize(
    ("terms", "why"), [({"max_bytes": 1_000}, "FILE_TOO_LARGE"), ({"quota_bytes": 2_000}, "BUDGET_EXCEEDED")]
)
async def test_a_whole_result_beyond_cap_or_quota_is_left_out_and_reported(
    tmp_path: Path, terms: dict[str, int], why: str
) -> None:
    kept, observer = kept_in(tmp_path, **terms), RecordingObserver([])
    result = await answered(kept, a_call(), observer)
    assert (result.ok, result.truncated, result.artifacts) == (True, True, ())
    assert result.evidence[-1].summary == f"the whole result could not be kept as an artifact: {why}"
    assert result.evidence[-1].created_at_unix_ms
    assert (kept.files(), observer.crashes) == ([], [])


async def test_store_that_fails_costs_the_whole_and_not_the_answer(kept: ArtifactsHarness) -> None:
    observer = RecordingObserver([])
    kept.records.is_broken = True
    result = await answered(kept, a_call(), observer)
    assert (result.ok, result.artifacts) == (True, ())
    assert result.evidence[-1].summary.endswith("TOOL_UNAVAILABLE")
    assert [type(crash) for crash in observer.crashes] == [ToolFailure]


async def test_defect_of_a_store_costs_the_whole_and_not_the_answer(
    kept: ArtifactsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks() -> Any:
        raise ZeroDivisionError("secret text")

    monkeypatch.setattr(kept.blobs, "writer", breaks)
    observer = RecordingObserver([])
    result = await answered(kept, a_call(), observer)
    assert result.evidence[-1].summary.endswith("INTERNAL")
    assert "secret" not in repr(result.evidence)
    assert [type(crash) for crash in observer.crashes] == [ZeroDivisionError]


async def test_slow_store_is_not_waited_for_beyond_the_callers_deadline(
    kept: ArtifactsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(kept.blobs, "writer", hangs)
    observer = RecordingObserver([])
    result = await answered(kept, a_call(deadline_s=time.monotonic() + 0.01), observer)
    assert result.evidence[-1].summary.endswith("TIMEOUT")
    assert [type(crash) for crash in observer.crashes] == [TimeoutError]
