"""Keeping, opening, reading, uploading: who may, how much, and that nothing is kept by halves."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.artifacts import (
    MAX_BYTES,
    QUOTA_BYTES,
    TTL_S,
    ArtifactsHarness,
    FakeArtifactRecords,
    a_call,
    kept_in,
    pieces,
    whole,
)
from tests.fakes.outcomes import outcome_of
from tests.fakes.storage import with_quota
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.artifact import OCTETS, Artifact, ArtifactFilter
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.artifacts.uploads import ArtifactHeader

DATA = b"some output\n" * 1_000
AUDITOR = Principal("auditor", frozenset({Role.AUDITOR}))
MEGABYTE = b"m" * 1024 * 1024


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[ArtifactsHarness]:
    found = kept_in(tmp_path / "blobs")
    yield found
    await found.blobs.close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def refused(awaited: Any) -> tuple[Code, str]:
    with pytest.raises(HubFailure) as failure:
        await awaited
    return failure.value.reason.code, failure.value.reason.name


async def kind(awaited: Any) -> ErrorKind:
    with pytest.raises(ToolFailure) as failure:
        await awaited
    assert failure.value.error.message
    return failure.value.error.kind


async def test_kept_output_belongs_to_its_call_and_is_read_again(kept: ArtifactsHarness) -> None:
    artifact = await kept.artifacts.keep(
        pieces(DATA[:5], DATA[5:]), call=a_call(), media_type="text/plain", name="out.txt"
    )
    now = kept.clock.unix_ms()
    assert replace(artifact, artifact_id="") == Artifact(
        "",
        sha256(DATA),
        len(DATA),
        "agent-a",
        now,
        now + int(TTL_S * 1_000),
        "text/plain",
        "out.txt",
        "task-1",
        "call-1",
    )
    assert await kept.artifacts.open("agent-a", artifact.artifact_id) == artifact
    assert await whole(kept.artifacts, artifact) == DATA


async def test_ids_are_128_random_bits(kept: ArtifactsHarness) -> None:
    artifacts = [await kept.artifacts.keep(pieces(DATA), call=a_call()) for _ in range(5)]
    assert len({artifact.artifact_id for artifact in artifacts}) == 5
    assert all(re.fullmatch(r"art_[0-9a-f]{32}", artifact.artifact_id) for artifact in artifacts)
    assert kept.files() == [sha256(DATA)]


async def test_foreign_unknown_and_expired_artifacts_are_reported_alike(kept: ArtifactsHarness) -> None:
    artifact = await kept.artifacts.keep(pieces(DATA), call=a_call())
    errors = [
        await outcome_of(kept.artifacts.open("agent-b", artifact.artifact_id)),
        await outcome_of(kept.artifacts.open("agent-a", "art_" + "0" * 32)),
        await outcome_of(kept.artifacts.open("agent-a", "../../etc/passwd")),
    ]
    assert await kept.artifacts.open("auditor", artifact.artifact_id, auditor=AUDITOR) == artifact
    kept.clock.advance(TTL_S)
    errors.append(await outcome_of(kept.artifacts.open("agent-a", artifact.artifact_id)))
    errors.append(await outcome_of(kept.artifacts.open("auditor", artifact.artifact_id, auditor=AUDITOR)))
    assert errors[0].kind is ErrorKind.NOT_FOUND
    assert all(error == errors[0] for error in errors)


@pytest.mark.parametrize(
    ("offset", "limit"), [(0, 1), (3, 0), (3, 10**9), (len(DATA) - 1, 5), (len(DATA), 0), (len(DATA) + 9, 0)]
)
async def test_a_part_is_read_by_offset_and_limit(kept: ArtifactsHarness, offset: int, limit: int) -> None:
    artifact = await kept.artifacts.keep(pieces(DATA), call=a_call())
    assert await whole(kept.artifacts, artifact, offset, limit) == DATA[offset : offset + limit if limit else None]


async def test_missing_bytes_are_reported_and_not_passed_off_as_the_end(kept: ArtifactsHarness) -> None:
    artifact = await kept.artifacts.keep(pieces(DATA), call=a_call())
    (file,) = (kept.folder / artifact.sha256[:2]).iterdir()
    file.write_bytes(DATA[:100])
    assert await kind(whole(kept.artifacts, artifact)) is ErrorKind.IO_ERROR


async def test_more_than_the_cap_is_refused_and_leaves_nothing(kept: ArtifactsHarness) -> None:
    exactly = [MEGABYTE] * 8
    assert (await kept.artifacts.keep(pieces(*exactly), call=a_call())).size_bytes == MAX_BYTES
    before = kept.files()
    assert await kind(kept.artifacts.keep(pieces(*exactly, b"!"), call=a_call())) is ErrorKind.FILE_TOO_LARGE
    assert await refused(kept.artifacts.write("agent-a", ArtifactHeader(), pieces(*exactly, b"!"))) == (
        Code.RESOURCE_EXHAUSTED,
        "ARTIFACT_TOO_LARGE",
    )
    assert (kept.files(), len(kept.records.found)) == (before, 1)


async def test_declared_size_beyond_the_cap_is_refused_before_a_byte_is_read(kept: ArtifactsHarness) -> None:
    chunks = pieces(DATA)
    header = ArtifactHeader(size_bytes=MAX_BYTES + 1)
    assert (await refused(kept.artifacts.write("agent-a", header, chunks)))[1] == "ARTIFACT_TOO_LARGE"
    assert await anext(chunks) == DATA


async def test_quota_is_each_principals_own(kept: ArtifactsHarness) -> None:
    for _ in range(2):
        await kept.artifacts.keep(pieces(*[MEGABYTE] * 8), call=a_call())
    assert await kind(kept.artifacts.keep(pieces(*[MEGABYTE] * 8), call=a_call())) is ErrorKind.BUDGET_EXCEEDED
    assert await refused(kept.artifacts.write("agent-a", ArtifactHeader(), pieces(*[MEGABYTE] * 4))) == (
        Code.RESOURCE_EXHAUSTED,
        "QUOTA_EXCEEDED",
    )
    await kept.artifacts.keep(pieces(*[MEGABYTE] * 8), call=a_call("agent-b"))
    await kept.artifacts.keep(pieces(*[MEGABYTE] * 3), call=a_call())


async def test_refusal_for_the_quota_shows_its_figures_and_one_for_the_cap_none(kept: ArtifactsHarness) -> None:
    small = kept_in(kept.folder, quota_bytes=10_000, max_bytes=6_000)
    await small.artifacts.write("agent-a", ArtifactHeader(), pieces(b"x" * 6_000))
    with pytest.raises(HubFailure) as beyond_quota:
        await small.artifacts.write("agent-a", ArtifactHeader(), pieces(b"x" * 6_000))
    assert beyond_quota.value.metadata["quota_bytes"] == "10000"
    with pytest.raises(HubFailure) as beyond_cap:
        await small.artifacts.write("agent-b", ArtifactHeader(), pieces(b"x" * 6_001))
    assert beyond_cap.value.metadata == {}


async def test_artifacts_of_a_task_are_found_behind_many_of_others(
    kept: ArtifactsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolhub_service.runtime.artifacts.service._LISTED_AT_ONCE", 2)
    wanted = await kept.artifacts.keep(pieces(DATA), call=a_call(task_id="wanted"))
    for _ in range(5):
        kept.clock.advance(1.0)
        await kept.artifacts.keep(pieces(DATA), call=a_call())
    where = ArtifactFilter("agent-a", task_id="wanted")
    assert await kept.artifacts.page(where, after=None, limit=9) == ([wanted], None)


@pytest.mark.promise("artifact.bounded")
async def test_uploads_at_once_cannot_pass_the_quota_together(kept: ArtifactsHarness) -> None:
    contents = [pieces(*[MEGABYTE] * 4) for _ in range(12)]
    answers = await asyncio.gather(*[outcome_of(kept.artifacts.keep(content, call=a_call())) for content in contents])
    kinds = {answer.kind for answer in answers if not isinstance(answer, Artifact)}
    count, used_bytes = await kept.records.usage("agent-a")
    assert kinds == {ErrorKind.BUDGET_EXCEEDED}
    assert used_bytes <= QUOTA_BYTES
    for _ in range(4 - count):  # what was refused has given its room back
        await kept.artifacts.keep(pieces(*[MEGABYTE] * 4), call=a_call())


async def test_empty_artifacts_are_not_free(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, quota_bytes=10 * 1_024)
    for _ in range(10):
        await kept.artifacts.keep(pieces(), call=a_call())
    assert await kind(kept.artifacts.keep(pieces(), call=a_call())) is ErrorKind.BUDGET_EXCEEDED


@pytest.mark.parametrize(("length", "is_kept"), [(255, True), (256, False)])
async def test_media_type_is_kept_up_to_its_greatest_length(kept: ArtifactsHarness, length: int, is_kept: bool) -> None:
    media_type = "text/plain;".ljust(length, "x")
    artifact = await kept.artifacts.keep(pieces(DATA), call=a_call(), media_type=media_type)
    assert artifact.media_type == (media_type if is_kept else OCTETS)


async def test_upload_as_declared_is_kept(kept: ArtifactsHarness) -> None:
    header = ArtifactHeader("text/csv; charset=utf-8", "rows.csv", "task-9", len(DATA), sha256(DATA))
    artifact = await kept.artifacts.write("agent-a", header, pieces(DATA))
    assert (artifact.media_type, artifact.name, artifact.task_id, artifact.call_id) == (
        "text/csv; charset=utf-8",
        "rows.csv",
        "task-9",
        "",
    )
    assert await whole(kept.artifacts, artifact) == DATA


async def test_upload_that_declares_nothing_is_kept_as_octets(kept: ArtifactsHarness) -> None:
    artifact = await kept.artifacts.write("agent-a", ArtifactHeader(), pieces(b"", DATA, b""))
    assert (artifact.media_type, artifact.name, artifact.size_bytes) == (OCTETS, "", len(DATA))


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (ArtifactHeader(size_bytes=len(DATA) - 1), "SIZE_MISMATCH"),
        (ArtifactHeader(size_bytes=len(DATA) + 1), "SIZE_MISMATCH"),
        (ArtifactHeader(sha256="0" * 64), "DIGEST_MISMATCH"),
        (ArtifactHeader(size_bytes=len(DATA), sha256="0" * 64), "DIGEST_MISMATCH"),
        *(
            (ArtifactHeader(name=name), "BAD_NAME")
            for name in ("../x", "/etc/passwd", "a\\b", ".", "..", "a\nb", "a\x00")
        ),
        *((ArtifactHeader(name=name), "BAD_NAME") for name in ("\x1b[31mred", "gnp.\u202eexe", "x" * 256)),
        *(
            (ArtifactHeader(media_type=media), "BAD_MEDIA_TYPE")
            for media in ("text", "text/plain\r\nX: y", "é/é", "a/b;ü")
        ),
    ],
)
async def test_upload_other_than_declared_or_misdeclared_leaves_nothing(
    kept: ArtifactsHarness, header: ArtifactHeader, reason: str
) -> None:
    assert await refused(kept.artifacts.write("agent-a", header, pieces(DATA))) == (Code.INVALID_ARGUMENT, reason)
    assert (kept.files(), kept.records.found) == ([], {})


@pytest.mark.parametrize(("missing", "came"), [(-1, "but more arrived"), (1, f"but only {len(DATA)} arrived")])
async def test_a_refusal_states_whether_too_much_or_too_little_came(
    kept: ArtifactsHarness, missing: int, came: str
) -> None:
    with pytest.raises(HubFailure, match=came):
        await kept.artifacts.write("agent-a", ArtifactHeader(size_bytes=len(DATA) + missing), pieces(DATA))


@pytest.mark.parametrize(
    ("given", "name"),
    [("../../etc/passwd", "passwd"), ("a\\b.txt", "b.txt"), ("..", ""), ("a\x1b[0m", "a[0m"), ("é.txt", "é.txt")],
)
async def test_file_names_of_tools_are_sanitized(kept: ArtifactsHarness, given: str, name: str) -> None:
    artifact = await kept.artifacts.keep(pieces(DATA), call=a_call(), name=given, media_type="no\nmedia type")
    assert (artifact.name, artifact.media_type) == (name, OCTETS)


async def test_broken_stream_leaves_nothing(kept: ArtifactsHarness) -> None:
    broken = pieces(*[MEGABYTE] * 3, breaks_with=ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        await kept.artifacts.write("agent-a", ArtifactHeader(), broken)
    assert (kept.files(), kept.records.found) == ([], {})
    assert (await kept.artifacts.keep(pieces(DATA), call=a_call())).size_bytes == len(DATA)


async def test_cancelled_upload_leaves_nothing(kept: ArtifactsHarness) -> None:
    waiting = asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        yield MEGABYTE
        yield MEGABYTE
        waiting.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(kept.artifacts.write("agent-a", ArtifactHeader(), hanging()))
    await waiting.wait()
    assert len(kept.files()) == 1
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (kept.files(), kept.records.found) == ([], {})


class SlowRecords(FakeArtifactRecords):
    """Adding waits to be let go."""

    def __init__(self) -> None:
        super().__init__()
        self.adding, self.let_go = asyncio.Event(), asyncio.Event()

    async def add(self, artifact: Artifact) -> None:
        self.adding.set()
        await self.let_go.wait()
        await super().add(artifact)


async def test_upload_cancelled_while_it_is_recorded_is_undone(kept: ArtifactsHarness) -> None:
    records = SlowRecords()
    terms: dict[str, Any] = {
        "ttl_s": TTL_S,
        "max_bytes": 10**6,
        "directory": with_quota(artifact=10**6),
        "argument_max_bytes": 1,
        "linger_s": 0,
    }
    artifacts = Artifacts(records, kept.blobs, kept.clock, SystemRandomness(), **terms)
    writing = asyncio.create_task(artifacts.write("agent-a", ArtifactHeader(), pieces(DATA)))
    await records.adding.wait()
    writing.cancel()
    records.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    (left,) = records.found.values()
    assert await kind(artifacts.open("agent-a", left.artifact_id)) is ErrorKind.NOT_FOUND
    assert await artifacts.sweep(kept.clock.unix_ms()) == 1
    assert (kept.files(), records.found) == ([], {})


async def test_records_that_do_not_answer_are_reported_and_leave_no_record(kept: ArtifactsHarness) -> None:
    kept.records.is_broken = True
    assert await kind(kept.artifacts.keep(pieces(DATA), call=a_call())) is ErrorKind.TOOL_UNAVAILABLE
    assert await kind(kept.artifacts.open("agent-a", "art_1")) is ErrorKind.TOOL_UNAVAILABLE
    kept.records.is_broken = False
    assert kept.records.found == {}
    assert await whole(kept.artifacts, await kept.artifacts.keep(pieces(DATA), call=a_call())) == DATA


async def test_released_artifacts_have_no_owner_at_once_and_their_bytes_go_with_the_next_sweep(
    kept: ArtifactsHarness,
) -> None:
    twin = await kept.artifacts.keep(pieces(DATA), call=a_call("agent-b"))
    first, second = [await kept.artifacts.keep(pieces(data), call=a_call()) for data in (DATA, MEGABYTE)]
    await kept.artifacts.release([first.artifact_id, second.artifact_id, "art_unknown"])
    assert await kept.records.usage("agent-a") == (0, 0)
    assert await kind(kept.artifacts.open("agent-a", first.artifact_id)) is ErrorKind.NOT_FOUND
    await kept.artifacts.sweep(kept.clock.unix_ms() + 1)
    assert kept.files() == [sha256(DATA)]
    assert await whole(kept.artifacts, twin) == DATA


async def test_a_store_that_is_away_keeps_no_failed_call_from_its_answer(kept: ArtifactsHarness) -> None:
    artifact = await kept.artifacts.keep(pieces(DATA), call=a_call())
    kept.records.is_broken = True
    await kept.artifacts.release([artifact.artifact_id])
    kept.records.is_broken = False
    assert await kept.records.usage("agent-a") == (1, len(DATA)), "it stays until it expires"


async def test_whole_of_a_result_is_an_artifact_of_its_call(kept: ArtifactsHarness) -> None:
    ref = await kept.artifacts.keep_whole(a_call(), b'{"a":1}')
    artifact = await kept.artifacts.open("agent-a", ref.artifact_id)
    assert artifact.ref == ref
    assert (ref.media_type, ref.name, artifact.call_id) == ("application/json", "result.json", "call-1")
    assert await whole(kept.artifacts, artifact) == b'{"a":1}'


async def test_equal_content_of_many_at_once_is_stored_once_and_owned_by_each(kept: ArtifactsHarness) -> None:
    principals = [f"agent-{number}" for number in range(20)]
    found = await asyncio.gather(*[kept.artifacts.keep(pieces(DATA), call=a_call(name)) for name in principals])
    assert kept.files() == [sha256(DATA)]
    assert [artifact.principal for artifact in found] == principals
    assert len({artifact.artifact_id for artifact in found}) == 20
