"""writeText, editText, copy, move, deletePath."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from tests.fakes.file_calls import OPENINGS, FileCalls, content_of
from toolhub_service.aio.threads import INLINE_BYTES
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.verdict import Sandbox


@pytest.fixture(params=OPENINGS)
def calls(request: pytest.FixtureRequest, tmp_path: Path) -> FileCalls:
    return FileCalls(tmp_path / "work", OPENINGS[request.param])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_a_text_is_written_with_evidence(calls: FileCalls) -> None:
    written = await calls("writeText", path="a/b/notes.md", text="héllo\n")
    data = "héllo\n".encode()
    assert written == {"path": "a/b/notes.md", "bytes": 7, "sha256": sha256(data)}
    assert (calls.root / "a/b/notes.md").read_bytes() == data
    (evidence,) = calls.context.evidence
    assert (evidence.ref, evidence.sha256, evidence.summary) == ("a/b/notes.md", sha256(data), "wrote 7 bytes")


async def test_a_large_text_is_written_whole(calls: FileCalls) -> None:
    text = "0123456789abcdef" * (3 * INLINE_BYTES // 16)
    await calls("writeText", path="large", text=text)
    assert (calls.root / "large").read_text() == text


@pytest.mark.promise("fs.whole-writes")
async def test_a_taken_path_is_refused_unless_overwritten(calls: FileCalls) -> None:
    calls.put("f", "old")
    assert await calls.kind("writeText", path="f", text="new") is ErrorKind.ALREADY_EXISTS
    assert (calls.root / "f").read_text() == "old"
    await calls("writeText", path="f", text="new", overwrite=True)
    assert (calls.root / "f").read_text() == "new"
    assert await calls.kind("writeText", path=".", text="x", overwrite=True) is ErrorKind.INVALID_INPUT


async def test_a_missing_folder_is_made_only_when_wanted(calls: FileCalls) -> None:
    assert await calls.kind("writeText", path="no/f", text="", mkdirp=False) is ErrorKind.NOT_FOUND
    assert content_of(calls.root) == {}


async def test_text_is_written_in_the_asked_encoding(calls: FileCalls) -> None:
    await calls("writeText", path="f", text="中文", encoding="gbk")
    assert (calls.root / "f").read_bytes() == "中文".encode("gbk")
    failure = await calls.refused("writeText", path="g", text="abc中", encoding="ascii")
    assert failure.error.kind is ErrorKind.INVALID_INPUT
    assert failure.error.details["at_index"] == 3
    assert not (calls.root / "g").exists()


async def test_the_sandbox_bounds_what_is_written_and_replaced(tmp_path: Path) -> None:
    calls = FileCalls(tmp_path, OPENINGS["openat2"], Sandbox(max_write_bytes=4, may_overwrite=False))
    assert await calls.kind("writeText", path="f", text="12345") is ErrorKind.FILE_TOO_LARGE
    calls.put("big", "12345")
    assert await calls.kind("copy", source="big", destination="c") is ErrorKind.FILE_TOO_LARGE
    replacing: dict[str, dict[str, object]] = {
        "writeText": {"path": "big", "text": "", "overwrite": True},
        "editText": {"path": "big", "oldText": "1", "newText": ""},
        "copy": {"source": "big", "destination": "c", "overwrite": True},
        "move": {"source": "big", "destination": "c", "overwrite": True},
    }
    for name, args in replacing.items():
        assert await calls.kind(name, **args) is ErrorKind.POLICY_DENIED
    assert content_of(tmp_path) == {"big": b"12345"}


async def test_an_exact_text_is_replaced(calls: FileCalls) -> None:
    calls.put("f.py", "a = 1\nb = 2\n").chmod(0o755)
    edited = await calls("editText", path="f.py", oldText="b = 2", newText="b = 3é")
    data = "a = 1\nb = 3é\n".encode()
    assert edited == {"path": "f.py", "replacements": 1, "sha256": sha256(data)}
    assert (calls.root / "f.py").read_bytes() == data
    assert (calls.root / "f.py").stat().st_mode & 0o777 == 0o755
    assert calls.context.evidence[0].sha256 == sha256(data)


async def test_an_ambiguous_text_is_refused_with_its_places(calls: FileCalls) -> None:
    calls.put("f", "x\ny\nx\n")
    failure = await calls.refused("editText", path="f", oldText="x", newText="z")
    assert failure.error.kind is ErrorKind.INVALID_INPUT
    assert "2 times" in failure.error.message
    assert failure.error.details == {"found": 2, "expected": 1, "lines": [1, 3]}
    assert (calls.root / "f").read_text() == "x\ny\nx\n"
    assert (await calls("editText", path="f", oldText="x", newText="z", expectedCount=2))["replacements"] == 2
    assert (calls.root / "f").read_text() == "z\ny\nz\n"


@pytest.mark.parametrize(
    ("content", "old", "hint"),
    [
        ("a\n", "b", "Read the file again"),
        ("a\r\nb\r\nc\n", "a\nb", "CRLF"),
        ("if x:\n\ty\n", "if x:\n    y", "white space"),
    ],
)
async def test_a_text_that_does_not_occur_is_refused_with_a_hint(
    calls: FileCalls, content: str, old: str, hint: str
) -> None:
    calls.put("f", content)
    failure = await calls.refused("editText", path="f", oldText=old, newText="")
    assert failure.error.kind is ErrorKind.INVALID_INPUT
    assert hint in failure.error.message


async def test_an_edit_keeps_the_line_ends_of_the_file(calls: FileCalls) -> None:
    calls.put("crlf", b"a\r\nb\r\n")
    await calls("editText", path="crlf", oldText="a\nb", newText="a\nc\nb")
    assert (calls.root / "crlf").read_bytes() == b"a\r\nc\r\nb\r\n"
    await calls("editText", path="crlf", oldText="c\r\n", newText="")
    assert (calls.root / "crlf").read_bytes() == b"a\r\nb\r\n"
    calls.put("mixed", b"a\r\nb\n")
    await calls("editText", path="mixed", oldText="b", newText="b\nc")
    assert (calls.root / "mixed").read_bytes() == b"a\r\nb\nc\n"


async def test_edits_of_what_cannot_be_edited_are_refused(calls: FileCalls) -> None:
    calls.put("binary", b"\xff\xfe")
    (calls.root / "link").symlink_to("binary")
    assert await calls.kind("editText", path="nope", oldText="a", newText="") is ErrorKind.NOT_FOUND
    assert await calls.kind("editText", path="binary", oldText="a", newText="") is ErrorKind.INVALID_INPUT
    assert await calls.kind("editText", path="link", oldText="a", newText="") is ErrorKind.PATH_OUTSIDE_SANDBOX


async def test_no_edit_is_lost_when_many_edit_one_large_file(calls: FileCalls) -> None:
    filler = "." * (2 * INLINE_BYTES)
    calls.put("f", filler + "".join(f"<{number}>" for number in range(8)))

    async def edit(number: int) -> None:
        one = FileCalls(calls.root, calls._opening)
        may_retry = True
        while may_retry:
            try:
                await one("editText", path="f", oldText=f"<{number}>", newText=f"[{number}]")
                return
            except ToolFailure as failure:
                may_retry = failure.error.is_retryable
            await asyncio.sleep(0)

    await asyncio.gather(*(edit(number) for number in range(8)))
    assert (calls.root / "f").read_text() == filler + "".join(f"[{number}]" for number in range(8))


@pytest.mark.parametrize("size", [0, 10, 5 * 1024 * 1024 + 3])
async def test_a_file_is_copied_with_progress(calls: FileCalls, size: int) -> None:
    data = os.urandom(size)
    calls.put("a.bin", data).chmod(0o640)
    copied = await calls("copy", source="a.bin", destination="deep/b.bin")
    assert copied == {"bytesCopied": size, "sha256": sha256(data)}
    assert (calls.root / "deep/b.bin").read_bytes() == data
    assert (calls.root / "deep/b.bin").stat().st_mode & 0o777 == 0o640
    await calls.settled()
    steps = [report.step for report in calls.sink.reports]
    assert steps == sorted(steps)
    assert (steps[-1], calls.sink.reports[-1].total, calls.sink.reports[-1].unit) == (size, size, "bytes")
    assert calls.context.evidence[0].sha256 == sha256(data)


async def test_impossible_copies_are_refused(calls: FileCalls) -> None:
    calls.put("a", "a")
    calls.put("b", "b")
    calls.put("dir/f")
    assert await calls.kind("copy", source="a", destination="b") is ErrorKind.ALREADY_EXISTS
    assert await calls.kind("copy", source="dir", destination="c") is ErrorKind.INVALID_INPUT
    assert await calls.kind("copy", source="nope", destination="c") is ErrorKind.NOT_FOUND
    assert await calls.kind("copy", source="a", destination="dir", overwrite=True) is ErrorKind.INVALID_INPUT
    assert await calls.kind("copy", source="a", destination="../c") is ErrorKind.PATH_OUTSIDE_SANDBOX
    await calls("copy", source="a", destination="b", overwrite=True)
    await calls("copy", source="a", destination="a", overwrite=True)
    assert content_of(calls.root) == {"a": b"a", "b": b"a", "dir": None, "dir/f": b""}


@pytest.mark.parametrize("size", [3, 2 * INLINE_BYTES])
async def test_a_file_is_moved(calls: FileCalls, size: int) -> None:
    data = os.urandom(size)
    calls.put("a", data)
    assert await calls("move", source="a", destination="x/b") == {"bytesCopied": size, "sha256": sha256(data)}
    assert content_of(calls.root) == {"x": None, "x/b": data}
    assert calls.context.evidence[0].ref == "x/b"
    await calls.settled()
    assert calls.sink.reports[-1].step == size


async def test_a_folder_is_moved_but_never_replaced(calls: FileCalls) -> None:
    calls.put("d/f", "x")
    calls.put("e/g", "y")
    assert await calls.kind("move", source="d", destination="e") is ErrorKind.ALREADY_EXISTS
    assert await calls.kind("move", source="d", destination="e", overwrite=True) is ErrorKind.INVALID_INPUT
    assert await calls.kind("move", source="d", destination="d/inner") is ErrorKind.INVALID_INPUT
    assert await calls("move", source="d", destination="new") == {"bytesCopied": 0, "sha256": ""}
    assert (calls.root / "new/f").read_text() == "x"


@pytest.mark.promise("fs.delete-confirmed")
async def test_nothing_is_deleted_without_confirmation(calls: FileCalls) -> None:
    calls.put("f", "x")
    assert await calls.kind("deletePath", path="f") is ErrorKind.INVALID_INPUT
    assert await calls.kind("deletePath", path="f", confirm=False) is ErrorKind.INVALID_INPUT
    assert (calls.root / "f").exists()


async def test_files_and_folders_are_deleted(calls: FileCalls) -> None:
    calls.put("f", "xyz")
    calls.put("d/e/g", "12")
    calls.put("d/h", "345")
    assert await calls("deletePath", path="f", confirm=True, recursive=True) == {
        "deleted": True,
        "files": 1,
        "folders": 0,
        "bytes": 3,
    }
    assert await calls.kind("deletePath", path="d", confirm=True) is ErrorKind.INVALID_INPUT
    removed = await calls("deletePath", path="d", confirm=True, recursive=True)
    assert removed == {"deleted": True, "files": 2, "folders": 2, "bytes": 5}
    assert calls.context.evidence[0].summary == "deleted 2 files and 2 folders, 5 bytes"
    assert await calls.kind("deletePath", path="d", confirm=True) is ErrorKind.NOT_FOUND
    assert await calls.kind("deletePath", path=".", confirm=True, recursive=True) is ErrorKind.INVALID_INPUT
