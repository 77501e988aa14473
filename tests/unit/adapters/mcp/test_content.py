"""What a tool's answer becomes: its value, its artifacts, its proof."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.artifacts import Kept, kept_in, whole
from tests.fakes.mcp_stage import mcp_tool
from tests.ports.adapter_suite import granted
from toolhub_service.adapters.mcp.calling import BLOCKS_MAX, Answerer, is_result, outcome_of
from toolhub_service.domain.artifact import ArtifactDesk
from toolhub_service.domain.result import Outcome

BY = Answerer("scripted 1.2.3", "2026-07-28")
BYTES = b"\x89PNG" * 10_000
IMAGE = {"type": "image", "data": base64.b64encode(BYTES).decode(), "mimeType": "image/png"}
SMALL = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}


async def read(
    result: dict[str, Any], desk: ArtifactDesk | None = None, *, output: Any = None, keep_raw: bool = False
) -> Outcome:
    return await outcome_of(result, granted(mcp_tool("t", output=output or {})), BY, desk, keep_raw=keep_raw)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return kept_in(tmp_path)


def says(*words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each} for each in words]


async def test_text_blocks_become_one_text() -> None:
    assert (await read({"content": says("a", "b")})).value == {"text": "a\nb"}
    assert (await read({"content": []})).value == {"text": ""}


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2], 3, "x", False])
async def test_structured_content_is_the_value_whatever_json_it_is(value: Any) -> None:
    outcome = await read({"content": says("same"), "structuredContent": value})
    assert outcome.value == value
    assert outcome.evidence[0].attributes["structured"] == "true"


async def test_null_is_a_value_only_of_a_tool_that_declares_its_output() -> None:
    assert (await read({"content": [], "structuredContent": None}, output={"type": "null"})).value is None
    assert (await read({"content": says("x"), "structuredContent": None})).value == {"text": "x"}


async def test_small_blocks_and_links_stay_where_they_are() -> None:
    outcome = await read({"content": [*says("see"), SMALL, LINK]})
    assert outcome.value == {"text": "see", "content": [SMALL, LINK]}
    assert not outcome.truncated


async def test_a_large_image_is_kept_as_an_artifact_and_named_in_its_place(kept: Kept) -> None:
    outcome = await read({"content": [*says("see"), IMAGE]}, kept.artifacts)
    (ref,) = outcome.artifacts
    sha256 = hashlib.sha256(BYTES).hexdigest()
    shown = {"type": "image", "mimeType": "image/png", "bytes": len(BYTES), "sha256": sha256}
    assert outcome.value == {"text": "see", "content": [{**shown, "artifact": ref.artifact_id}]}
    assert (ref.sha256, ref.size_bytes, ref.media_type) == (sha256, len(BYTES), "image/png")
    artifact = await kept.artifacts.open("tester", ref.artifact_id)
    assert await whole(kept.artifacts, artifact) == BYTES


async def test_large_resources_are_kept_with_their_names(kept: Kept) -> None:
    blob = {"uri": "file:///srv/report.pdf", "mimeType": "application/pdf", "blob": IMAGE["data"]}
    text = {"uri": "x://y/..", "mimeType": "text/plain\r\nx: y", "text": "long " * 10_000}
    result = {"content": [{"type": "resource", "resource": blob}, {"type": "resource", "resource": text}]}
    outcome = await read(result, kept.artifacts)
    first, second = outcome.artifacts
    assert (first.name, first.media_type) == ("report.pdf", "application/pdf")
    assert (second.name, second.media_type, second.size_bytes) == ("", "application/octet-stream", 50_000)
    assert "long" not in str(outcome.value)


async def test_beside_structured_content_every_picture_is_an_artifact(kept: Kept) -> None:
    outcome = await read({"content": [SMALL], "structuredContent": {"a": 1}}, kept.artifacts)
    assert outcome.value == {"a": 1}
    assert [ref.size_bytes for ref in outcome.artifacts] == [2]


async def test_what_cannot_be_kept_is_left_out_and_said(kept: Kept) -> None:
    kept.records.is_broken = True
    for desk in (None, kept.artifacts):
        outcome = await read({"content": [*says("still here"), IMAGE]}, desk)
        assert outcome.truncated
        value: Any = outcome.value
        assert value["text"] == "still here"
        (shown,) = value["content"]
        assert shown["dropped"]
        assert "data" not in shown


async def test_what_is_not_base64_is_left_out(kept: Kept) -> None:
    outcome = await read({"content": [{**IMAGE, "data": "a" * 20_001}]}, kept.artifacts)
    assert outcome.truncated
    assert outcome.artifacts == ()


async def test_blocks_without_number_are_cut() -> None:
    outcome = await read({"content": says(*["x"] * (BLOCKS_MAX + 5))})
    assert outcome.value == {"text": "\n".join(["x"] * BLOCKS_MAX)}
    assert outcome.truncated
    assert outcome.evidence[0].attributes["dropped_blocks"] == "5"


async def test_the_proof_names_who_answered_and_never_what() -> None:
    (proof,) = (await read({"content": says("private words")})).evidence
    named = {"source": "fake", "server": "scripted 1.2.3", "protocol": "2026-07-28", "remote_tool": "t"}
    assert proof.attributes == {**named, "structured": "false"}
    assert "private" not in repr(proof)


async def test_the_servers_own_answer_is_kept_only_when_it_is_wanted_and_small() -> None:
    result: dict[str, Any] = {"content": says("x")}
    assert (await read(result)).raw is None
    assert (await read(result, keep_raw=True)).raw == result
    large = await read({"content": says("x" * 100_000)}, keep_raw=True)
    assert set(large.raw) == {"bytes", "sha256"}  # type: ignore[arg-type]


def test_a_result_has_content_or_structure() -> None:
    assert is_result({"content": []})
    assert is_result({"structuredContent": None})
    assert not is_result({"content": "text"})
    assert not is_result({})
