"""`{"$artifact": id}` in arguments: replaced by text, bounded, distinguished, and in the audit log as a digest."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.artifacts import ARGUMENT_MAX_BYTES, TTL_S, ArtifactsHarness, a_call, kept_in, pieces
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure

TEXT = 'naïve "text"\n\u0000 of 漢字'


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[ArtifactsHarness]:
    found = kept_in(tmp_path / "blobs")
    yield found
    await found.blobs.close()


async def uploaded(kept: ArtifactsHarness, data: str | bytes = TEXT, principal: str = "agent-a") -> str:
    chunk = data.encode() if isinstance(data, str) else data
    return (await kept.artifacts.keep(pieces(chunk), call=a_call(principal))).artifact_id


async def error(kept: ArtifactsHarness, args: Any) -> ToolError:
    with pytest.raises(ToolFailure) as failure:
        await kept.artifacts.resolve(args, "agent-a")
    return failure.value.error


async def test_reference_becomes_the_text_at_any_place(kept: ArtifactsHarness) -> None:
    art = await uploaded(kept)
    args: dict[str, Any] = {"text": {"$artifact": art}, "list": [1, {"deep": [{"$artifact": art}]}], "plain": None}
    resolved = await kept.artifacts.resolve(args, "agent-a")
    assert resolved.args == {"text": TEXT, "list": [1, {"deep": [TEXT]}], "plain": None}
    assert args["text"] == {"$artifact": art}


async def test_audit_is_shown_digest_and_size_and_not_the_text(kept: ArtifactsHarness) -> None:
    art = await uploaded(kept)
    resolved = await kept.artifacts.resolve({"text": {"$artifact": art}}, "agent-a")
    data = TEXT.encode()
    expected = {"$artifact": art, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    assert resolved.shown == {"text": expected}


async def test_arguments_without_references_stay_the_very_same_object(kept: ArtifactsHarness) -> None:
    args: dict[str, Any] = {"text": "$artifact", "list": [{"artifact": "x"}]}
    resolved = await kept.artifacts.resolve(args, "agent-a")
    assert resolved.args is args
    assert resolved.shown is args


@pytest.mark.parametrize("art", ["art_" + "0" * 32, "", "../../x", "x" * 10_000])
async def test_unknown_artifact_is_not_found(kept: ArtifactsHarness, art: str) -> None:
    assert (await error(kept, {"text": {"$artifact": art}})).kind is ErrorKind.NOT_FOUND


async def test_foreign_and_expired_artifacts_are_not_found(kept: ArtifactsHarness) -> None:
    foreign, own = await uploaded(kept, principal="agent-b"), await uploaded(kept)
    assert (await error(kept, {"text": {"$artifact": foreign}})).kind is ErrorKind.NOT_FOUND
    kept.clock.advance(TTL_S)
    assert (await error(kept, {"text": {"$artifact": own}})).kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"a": [{"$artifact": "art_1", "offset": 3}]}, "/a/0"),
        ({"a/b": {"$artifact": 7}}, "/a~1b"),
        ({"a": {"$artifact": None}}, "/a"),
        ({"a": {"$artifact": {"$artifact": "art_1"}}}, "/a"),
        ({"$artifact": "art_1"}, ""),
    ],
)
async def test_a_value_that_only_looks_like_a_reference_is_reported_with_its_place(
    kept: ArtifactsHarness, args: Any, path: str
) -> None:
    refusal = await error(kept, args)
    assert refusal.kind is ErrorKind.INVALID_INPUT
    assert refusal.details == {"path": path}


async def test_content_that_is_not_text_is_refused_with_its_place(kept: ArtifactsHarness) -> None:
    refusal = await error(kept, {"text": {"$artifact": await uploaded(kept, b"good\xff")}})
    assert refusal.kind is ErrorKind.INVALID_INPUT
    assert refusal.details["at_byte"] == 4


async def test_references_are_bounded_all_together_and_each_time_they_are_written(kept: ArtifactsHarness) -> None:
    half = await uploaded(kept, "x" * (ARGUMENT_MAX_BYTES // 2))
    other = await uploaded(kept, "y" * (ARGUMENT_MAX_BYTES // 2))
    both = [{"$artifact": half}, {"$artifact": other}]
    resolved = await kept.artifacts.resolve({"list": both}, "agent-a")
    assert len(str(resolved.args["list"])) > ARGUMENT_MAX_BYTES
    for args in ({"list": [*both, {"$artifact": await uploaded(kept, "z")}]}, {"list": [{"$artifact": half}] * 3}):
        refusal = await error(kept, args)
        assert refusal.kind is ErrorKind.INVALID_INPUT
        assert refusal.details["max_bytes"] == ARGUMENT_MAX_BYTES


async def test_number_of_artifacts_is_bounded(kept: ArtifactsHarness) -> None:
    args = {"list": [{"$artifact": f"art_{number}"} for number in range(101)]}
    assert (await error(kept, args)).details == {"max_artifacts": 100}


async def test_damaged_bytes_never_become_an_argument(kept: ArtifactsHarness) -> None:
    art = await uploaded(kept, "abc")
    sha256 = kept.records.found[art].sha256
    (kept.folder / sha256[:2] / sha256[2:]).write_bytes(b"abd")
    assert (await error(kept, {"text": {"$artifact": art}})).kind is ErrorKind.IO_ERROR
