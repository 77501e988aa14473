"""readText, sha256, stat."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from tests.fakes.file_calls import OPENINGS, FileCalls, descriptors
from toolhub_service.aio.threads import INLINE_BYTES
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.verdict import Sandbox


@pytest.fixture(params=OPENINGS)
def calls(request: pytest.FixtureRequest, tmp_path: Path) -> FileCalls:
    return FileCalls(tmp_path / "work", OPENINGS[request.param])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_a_file_is_read_whole_with_evidence(calls: FileCalls) -> None:
    calls.put("a/notes.md", "one\ntwo\nthree")
    assert await calls("readText", path="./a//notes.md") == {
        "path": "a/notes.md",
        "text": "one\ntwo\nthree",
        "bytes": 13,
        "truncated": False,
        "totalLines": 3,
    }
    (evidence,) = calls.context.evidence
    assert (evidence.type, evidence.ref) == (EvidenceType.FILE, "a/notes.md")
    assert evidence.sha256 == sha256(b"one\ntwo\nthree")
    assert evidence.attributes == {"size_bytes": "13", "first_lines_sha256": sha256(b"one\ntwo\nthree")}


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ({"startLine": 2}, "two\nthree\n"),
        ({"endLine": 1}, "one\n"),
        ({"startLine": 2, "endLine": 2}, "two\n"),
        ({"startLine": 3, "endLine": 99}, "three\n"),
        ({"startLine": 4}, ""),
        ({"startLine": 99}, ""),
    ],
)
async def test_lines_are_counted_from_one_and_inclusive(calls: FileCalls, lines: dict[str, int], text: str) -> None:
    calls.put("f", "one\ntwo\nthree\n")
    read = await calls("readText", path="f", **lines)
    assert (read["text"], read["totalLines"]) == (text, 3)


async def test_an_end_before_the_start_is_refused(calls: FileCalls) -> None:
    calls.put("f", "one\n")
    assert await calls.kind("readText", path="f", startLine=2, endLine=1) is ErrorKind.INVALID_INPUT


async def test_an_empty_file_has_no_lines(calls: FileCalls) -> None:
    calls.put("empty")
    read = await calls("readText", path="empty")
    assert (read["text"], read["bytes"], read["totalLines"], read["truncated"]) == ("", 0, 0, False)


async def test_lines_of_a_large_file_are_found_across_chunks(calls: FileCalls) -> None:
    lines = [f"line {number} é" for number in range(1, 200_001)]
    content = "\n".join(lines) + "\n"
    calls.put("large", content)
    assert len(content.encode()) > 2 * 1024 * 1024
    read = await calls("readText", path="large", startLine=70_000, endLine=140_000)
    assert read["text"] == "\n".join(lines[69_999:140_000]) + "\n"
    assert read["totalLines"] == 200_000
    assert calls.context.evidence[0].sha256 == sha256(content.encode())


@pytest.mark.parametrize("padding", range(4))
async def test_a_long_text_is_cut_between_characters(calls: FileCalls, padding: int) -> None:
    content = "a" * padding + "界" * 2000
    calls.put("long", content)
    read = await calls("readText", path="long", maxBytes=1024)
    assert read["truncated"]
    assert calls.context.truncated
    assert content.startswith(read["text"])
    assert 1021 < len(read["text"].encode()) <= 1024
    assert read["bytes"] == len(content.encode())
    assert calls.context.evidence[0].sha256 == sha256(content.encode())


async def test_the_sandbox_bounds_what_is_read(tmp_path: Path) -> None:
    calls = FileCalls(tmp_path, OPENINGS["openat2"], Sandbox(max_read_bytes=10))
    calls.put("f", "x" * 200)
    read = await calls("readText", path="f")
    assert (read["text"], read["truncated"]) == ("x" * 10, True)
    calls.put("g", "x" * 201)
    failure = await calls.refused("readText", path="g")
    assert failure.error.kind is ErrorKind.FILE_TOO_LARGE
    assert failure.error.details == {"size_bytes": 201, "max_bytes": 200}


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030", "UTF_8", "shift_jis", "big5"])
async def test_other_encodings_are_read(calls: FileCalls, encoding: str) -> None:
    calls.put("f", "漢字\n日本\n".encode(encoding))
    read = await calls("readText", path="f", encoding=encoding, startLine=2)
    assert (read["text"], read["totalLines"]) == ("日本\n", 2)


async def test_bytes_that_are_not_text_are_refused_with_a_hint(calls: FileCalls) -> None:
    calls.put("f", b"good\n\xff\xfe bad")
    failure = await calls.refused("readText", path="f")
    assert failure.error.kind is ErrorKind.INVALID_INPUT
    assert failure.error.details == {"encoding": "utf-8", "at_byte": 5}
    assert "latin-1" in failure.error.message
    assert (await calls("readText", path="f", encoding="latin-1"))["text"] == "good\nÿþ bad"
    calls.put("cut", "é".encode()[:1])
    assert await calls.kind("readText", path="cut") is ErrorKind.INVALID_INPUT


@pytest.mark.parametrize("encoding", ["zlib", "rot13", "unicode_escape", "idna", "hex", "nonsense"])
async def test_codecs_that_are_no_text_encoding_are_refused(calls: FileCalls, encoding: str) -> None:
    calls.put("f", "text")
    failure = await calls.refused("readText", path="f", encoding=encoding)
    assert failure.error.kind is ErrorKind.INVALID_INPUT
    assert "utf-8" in str(failure.error.details["encodings"])


@pytest.mark.parametrize("tool", ["readText", "sha256"])
async def test_a_file_that_cannot_be_read_is_reported(calls: FileCalls, tool: str) -> None:
    calls.put("folder/f")
    assert await calls.kind(tool, path="nope") is ErrorKind.NOT_FOUND
    assert await calls.kind(tool, path="folder") is ErrorKind.INVALID_INPUT
    assert await calls.kind(tool, path="../x") is ErrorKind.PATH_OUTSIDE_SANDBOX


@pytest.mark.parametrize("size", [0, 5, INLINE_BYTES, INLINE_BYTES + 1, 3 * 1024 * 1024 + 1])
async def test_a_file_of_any_size_is_hashed(calls: FileCalls, size: int) -> None:
    data = os.urandom(size)
    calls.put("f", data)
    assert await calls("sha256", path="f") == {"sha256": sha256(data), "bytes": size}
    assert calls.context.evidence[0].sha256 == sha256(data)


async def test_a_status_is_read_without_following_links(calls: FileCalls, tmp_path: Path) -> None:
    file = calls.put("f", "12345")
    os.utime(file, (0, 1_000_000_000.25))
    assert await calls("stat", path="f") == {"type": "file", "size": 5, "modifiedAt": "2001-09-09T01:46:40.250Z"}
    (calls.root / "link").symlink_to("/etc/passwd")
    assert (await calls("stat", path="link"))["type"] == "link"
    assert (await calls("stat", path="."))["type"] == "dir"
    assert await calls.kind("stat", path="nope") is ErrorKind.NOT_FOUND
    await calls("stat", path="f")
    assert [(evidence.ref, evidence.summary) for evidence in calls.context.evidence] == [("f", "file of 5 bytes")]


async def test_times_beyond_the_calendar_are_shown_as_its_end(calls: FileCalls) -> None:
    os.utime(calls.put("f"), (0, 10**12))
    modified_at = (await calls("stat", path="f"))["modifiedAt"]
    assert modified_at.startswith(("9999-", "2446-"))


async def test_cancelling_ends_the_thread_and_leaks_nothing(calls: FileCalls) -> None:
    with calls.put("sparse").open("wb") as file:
        file.truncate(20 * 1024 * 1024 * 1024)
    await calls("listDir", path=".")
    before = descriptors()
    hashing = asyncio.create_task(calls("sha256", path="sparse"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    hashing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hashing
    assert descriptors() == before
