"""Expiry: records go first, bytes when no record has them, and never those of a keep that is under way."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.artifacts import TTL_S, ArtifactsHarness, a_call, kept_in, pieces, whole
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse

DATA = b"the same for all"


async def test_expired_artifact_goes_with_its_bytes(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    await kept.artifacts.keep(pieces(DATA), call=a_call())
    assert await kept.artifacts.sweep(kept.clock.unix_ms() + int(TTL_S * 1_000) - 1) == 0
    assert await kept.artifacts.sweep(kept.clock.unix_ms() + int(TTL_S * 1_000)) == 1
    assert (kept.files(), kept.records.found) == ([], {})


@pytest.mark.promise("artifact.expires")
async def test_bytes_stay_while_another_artifact_has_them(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    await kept.artifacts.keep(pieces(DATA), call=a_call())
    kept.clock.advance(TTL_S - 1)
    younger = await kept.artifacts.keep(pieces(DATA), call=a_call("agent-b"))
    kept.clock.advance(1)
    assert await kept.artifacts.sweep(kept.clock.unix_ms()) == 1
    assert await whole(kept.artifacts, younger) == DATA
    kept.clock.advance(TTL_S)
    assert await kept.artifacts.sweep(kept.clock.unix_ms()) == 1
    assert kept.files() == []


@pytest.mark.promise("artifact.expires")
async def test_expired_artifacts_linger_unreadable_until_their_bytes_may_go(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, linger_s=60.0)
    artifact = await kept.artifacts.keep(pieces(DATA), call=a_call())
    kept.clock.advance(TTL_S)
    with pytest.raises(ToolFailure):
        await kept.artifacts.open("agent-a", artifact.artifact_id)
    assert await kept.artifacts.sweep(kept.clock.unix_ms()) == 0
    kept.clock.advance(60.0)
    assert await kept.artifacts.sweep(kept.clock.unix_ms()) == 1


async def test_many_expired_artifacts_go_in_one_sweep(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    for number in range(250):
        await kept.artifacts.keep(pieces(str(number).encode()), call=a_call())
    kept.clock.advance(TTL_S)
    assert await kept.artifacts.sweep(kept.clock.unix_ms()) == 250
    assert (kept.files(), kept.records.found) == ([], {})


async def test_keep_between_record_and_bytes_of_a_sweep_loses_nothing(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, settle_s=60.0)
    await kept.artifacts.keep(pieces(DATA), call=a_call())
    for file in _blobs(tmp_path):
        os.utime(file, (0, 0))
    kept.clock.advance(TTL_S)
    during: list[Artifact] = []
    remove = kept.blobs.remove

    async def remove_late(sha256: str) -> None:
        during.append(await kept.artifacts.keep(pieces(DATA), call=a_call("agent-b")))
        await remove(sha256)

    kept.blobs.remove = remove_late  # type: ignore[method-assign]
    assert await kept.artifacts.sweep(kept.clock.unix_ms()) == 1
    assert await whole(kept.artifacts, during[0]) == DATA


async def test_keeps_and_sweeps_at_once_never_part_a_record_from_its_bytes(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, settle_s=60.0)
    order = random.Random(1)

    async def keeps(name: str) -> None:
        for _ in range(30):
            await kept.artifacts.keep(pieces(DATA), call=a_call(name))
            await asyncio.sleep(0)

    async def sweeps() -> None:
        for _ in range(60):
            for file in _blobs(tmp_path):
                if order.random() < 0.1:
                    os.utime(file, (0, 0))  # as if it had been there for long
                    for artifact_id in tuple(kept.records.found):
                        await kept.records.remove(artifact_id)
                    await kept.artifacts._leave_to_the_sweeper(_old(kept, file))
            await kept.artifacts.sweep(kept.clock.unix_ms())
            for artifact in tuple(kept.records.found.values()):
                if artifact.artifact_id in kept.records.found and artifact.expires_at_unix_ms > kept.clock.unix_ms():
                    assert await whole(kept.artifacts, artifact) == DATA

    await asyncio.gather(keeps("agent-a"), keeps("agent-b"), sweeps())


async def test_bytes_that_cannot_be_removed_are_tried_again(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    await kept.artifacts.keep(pieces(DATA), call=a_call())
    kept.clock.advance(TTL_S)
    remove = kept.blobs.remove

    async def refuses(sha256: str) -> None:
        raise refuse(ErrorKind.IO_ERROR, "The disk says no. Try again.")

    kept.blobs.remove = refuses  # type: ignore[method-assign]
    with pytest.raises(ToolFailure):
        await kept.artifacts.sweep(kept.clock.unix_ms())
    kept.blobs.remove = remove  # type: ignore[method-assign]
    assert await kept.artifacts.sweep(kept.clock.unix_ms()) == 1
    assert (kept.files(), kept.records.found) == ([], {})


def _blobs(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and len(path.name) == 62)


def _old(kept: ArtifactsHarness, file: Path) -> Artifact:
    return Artifact("", file.parent.name + file.name, len(DATA), "nobody", 0, 0)
