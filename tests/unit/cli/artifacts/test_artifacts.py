"""`toolhub artifacts …` against a real server: what goes up comes down, or nothing does."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from tests.fakes.artifacts import a_call, pieces
from tests.fakes.breaking_artifacts import DATA, BreakingArtifactServicer, served
from tests.rpc.artifact_server import MIB, ArtifactServer, artifact_server, sha256
from toolhub_service.cli.root import toolhub


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ArtifactServer]:
    async with artifact_server(tmp_path / "blobs") as running:
        yield running


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("toolhub_client.channel.FIRST_PAUSE_S", 0.001)
    return folder


async def run(address: str, *words: str, stdin: bytes | None = None) -> Result:
    """The command runs in a thread, for the server runs on this loop."""
    args = [*words, "--address", address, "--timeout", "10"]
    return await asyncio.to_thread(CliRunner().invoke, toolhub, ["artifacts", *args], input=stdin)


async def kept_by(server: ArtifactServer, data: bytes, name: str = "data.bin") -> str:
    chunks = pieces(*[data[start : start + MIB] for start in range(0, len(data), MIB)])
    return (await server.kept.artifacts.keep(chunks, call=a_call(), name=name)).artifact_id


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_file_goes_up_and_comes_down_as_it_was(server: ArtifactServer, folder: Path) -> None:
    (folder / "rows.csv").write_bytes(DATA)
    up = await run(server.address, "put", "rows.csv", "--task-id", "task-1")
    assert up.exit_code == 0, up.output
    artifact = json.loads(up.stdout)
    assert (artifact["sha256"], artifact["sizeBytes"]) == (sha256(DATA), str(len(DATA)))
    assert (artifact["name"], artifact["mediaType"], artifact["taskId"]) == ("rows.csv", "text/csv", "task-1")
    (folder / "rows.csv").unlink()
    down = await run(server.address, "get", artifact["artifactId"])
    assert down.exit_code == 0, down.output
    assert json.loads(down.stdout)["file"] == "rows.csv"
    assert (folder / "rows.csv").read_bytes() == DATA
    assert names(folder) == ["rows.csv"]
    shown = await run(server.address, "show", artifact["artifactId"])
    assert json.loads(shown.stdout) == artifact


@pytest.mark.parametrize("data", [b"", b"some", DATA])
async def test_pipes_go_both_ways(server: ArtifactServer, folder: Path, data: bytes) -> None:
    up = await run(server.address, "put", "-", "--name", "piped.txt", stdin=data)
    artifact = json.loads(up.stdout)
    assert (artifact["name"], artifact["sha256"]) == ("piped.txt", sha256(data))
    down = await run(server.address, "get", artifact["artifactId"], "-o", "-")
    assert down.stdout_bytes == data
    file = await run(server.address, "get", artifact["artifactId"])
    assert file.exit_code == 0, file.output
    assert (folder / "piped.txt").read_bytes() == data


async def test_standing_file_is_replaced_only_with_force(server: ArtifactServer, folder: Path) -> None:
    art = await kept_by(server, DATA)
    (folder / "out").write_text("mine")
    (folder / "link").symlink_to("nowhere")
    for name in ("out", "link"):
        refused = await run(server.address, "get", art, "-o", name)
        assert refused.exit_code == 1
        assert "--force" in refused.stderr
    assert (folder / "out").read_text() == "mine"
    assert (await run(server.address, "get", art, "-o", "out", "--force")).exit_code == 0
    assert (folder / "out").read_bytes() == DATA
    assert names(folder) == ["link", "out"]


@pytest.mark.parametrize("name", [".bashrc", "-rf", "", "..", "a\u202eb"])
async def test_name_that_could_lead_astray_is_not_used_for_the_file(
    server: ArtifactServer, folder: Path, name: str
) -> None:
    art = await kept_by(server, DATA, name)
    await run(server.address, "get", art)
    assert [found for found in names(folder) if found not in (art, "ab")] == []


async def test_unknown_artifact_is_refused_and_leaves_nothing(server: ArtifactServer, folder: Path) -> None:
    for words in (("get", "art_1"), ("show", "art_1")):
        refused = await run(server.address, *words)
        assert refused.exit_code == 1
        assert "NOT_FOUND" in refused.stderr
    assert names(folder) == []


@pytest.mark.parametrize("words", [("put", "missing"), ("put", ".")])
async def test_a_file_that_cannot_be_read_is_wrong_usage(server: ArtifactServer, words: tuple[str, ...]) -> None:
    refused = await run(server.address, *words)
    assert refused.exit_code == 2
    assert server.kept.records.found == {}


async def test_an_unreachable_hub_is_reported(folder: Path) -> None:
    (folder / "f").write_text("x")
    assert (await run("127.0.0.1:1", "put", "f")).exit_code == 3
    assert (await run("127.0.0.1:1", "get", "art_1")).exit_code == 3


@pytest.mark.promise("artifact.resumed")
async def test_broken_upload_of_a_file_goes_on_where_it_was(server: ArtifactServer, folder: Path) -> None:
    (folder / "data.bin").write_bytes(DATA)
    server.breaking.after = [1, 4, 2]
    up = await run(server.address, "put", "data.bin", "--json")
    assert up.exit_code == 0, up.stderr
    assert server.breaking.after == []
    ((artifact_id, artifact),) = server.kept.records.found.items()
    assert (json.loads(up.stdout)["artifactId"], artifact.sha256) == (artifact_id, sha256(DATA))


@pytest.mark.promise("cli.prefixes")
async def test_the_beginning_of_an_id_is_enough_while_it_fits_one_only(server: ArtifactServer) -> None:
    first, second = await kept_by(server, b"one"), await kept_by(server, b"two")
    shown = await run(server.address, "show", first[:-1])
    assert json.loads(shown.stdout)["artifactId"] == first
    down = await run(server.address, "get", second[:-1], "-o", "-")
    assert down.stdout == "two"
    several = await run(server.address, "delete", "art_", "--yes")
    assert several.exit_code == 2
    assert first in several.stderr
    assert second in several.stderr
    gone = await run(server.address, "delete", first[:-1], "--yes")
    assert json.loads(gone.stdout) == {"deleted": [first]}


async def test_artifacts_are_listed_and_deleted(server: ArtifactServer) -> None:
    first, second = await kept_by(server, b"first"), await kept_by(server, b"second")
    listed = await run(server.address, "list", "--json")
    assert {one["artifactId"] for one in json.loads(listed.stdout)["artifacts"]} == {first, second}
    by_content = await run(server.address, "list", "--sha256", sha256(b"first"), "--json")
    assert [one["artifactId"] for one in json.loads(by_content.stdout)["artifacts"]] == [first]
    mistyped = await run(server.address, "list", "--sha256", "xyz")
    assert (mistyped.exit_code, "64 hex digits" in mistyped.stderr) == (2, True)
    unsure = await run(server.address, "delete", first)
    assert (unsure.exit_code, "--yes" in unsure.stderr) == (2, True)
    assert set(server.kept.records.found) == {first, second}
    gone = await run(server.address, "delete", first, "--yes", "--json")
    assert (gone.exit_code, json.loads(gone.stdout)) == (0, {"deleted": [first]})
    assert (await run(server.address, "show", first)).exit_code == 1


@pytest.mark.parametrize("end", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, None])
@pytest.mark.parametrize("output", ["-", "out"])
async def test_broken_download_goes_on_where_it_was(folder: Path, end: grpc.StatusCode | None, output: str) -> None:
    servicer = BreakingArtifactServicer(end)
    server, address = await served(servicer)
    down = await run(address, "get", "art_1", "-o", output)
    await server.stop(0)
    assert down.exit_code == 0, down.stderr
    assert (down.stdout_bytes if output == "-" else (folder / "out").read_bytes()) == DATA
    assert servicer.offsets == [0, 600_000, 1_200_000, 1_800_000]


async def test_download_given_up_is_continued_by_the_next_command(folder: Path) -> None:
    servicer = BreakingArtifactServicer(grpc.StatusCode.UNAVAILABLE, streams_max=2)
    server, address = await served(servicer)
    given_up = await run(address, "get", "art_1")
    assert given_up.exit_code == 3
    (part,) = names(folder)
    assert part.startswith(".data.bin.")
    servicer._streams_max = 10**9
    servicer.offsets.clear()
    down = await run(address, "get", "art_1")
    await server.stop(0)
    assert down.exit_code == 0, down.stderr
    assert servicer.offsets[0] == 1_200_000
    assert names(folder) == ["data.bin"]
    assert (folder / "data.bin").read_bytes() == DATA


async def test_content_that_does_not_match_its_digest_is_not_written(folder: Path) -> None:
    server, address = await served(BreakingArtifactServicer(None, lies=True))
    down = await run(address, "get", "art_1")
    await server.stop(0)
    assert down.exit_code == 1
    assert "SHA-256" in down.stderr
    assert names(folder) == []


async def test_a_foreign_beginning_is_detected_by_the_digest(server: ArtifactServer, folder: Path) -> None:
    art = await kept_by(server, DATA)
    part = folder / f".data.bin.{sha256(DATA)[:16]}.part"
    part.write_bytes(b"not the beginning")
    assert (await run(server.address, "get", art)).exit_code == 1
    assert names(folder) == []
    part.write_bytes(DATA + b"longer than the whole")
    assert (await run(server.address, "get", art)).exit_code == 0
    assert (folder / "data.bin").read_bytes() == DATA


async def test_link_in_the_place_of_the_part_is_not_followed(server: ArtifactServer, folder: Path) -> None:
    art = await kept_by(server, DATA)
    (folder / "precious").write_text("mine")
    (folder / f".data.bin.{sha256(DATA)[:16]}.part").symlink_to(folder / "precious")
    assert (await run(server.address, "get", art)).exit_code == 1
    assert (folder / "precious").read_text() == "mine"


async def test_file_that_changes_while_it_goes_up_is_not_kept(
    server: ArtifactServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "log").write_bytes(DATA)
    seen = hashlib.sha256

    def sha256_then_grow(*data: bytes) -> Any:
        with (folder / "log").open("ab") as log:
            log.write(b"one more line")
        return seen(*data)

    monkeypatch.setattr("toolhub_client.uploads.hashlib.sha256", sha256_then_grow)
    refused = await run(server.address, "put", "log")
    monkeypatch.undo()
    assert refused.exit_code == 1
    assert "SIZE_MISMATCH" in refused.stderr
    assert server.kept.records.found == {}


async def test_an_interrupted_upload_of_a_pipe_ends_at_once_and_stores_nothing(server: ArtifactServer) -> None:
    reads, writes = os.pipe()
    command = [sys.executable, "-m", "toolhub_service", "artifacts", "put", "-", "--address", server.address]
    uploading = await asyncio.create_subprocess_exec(*command, stdin=reads, stderr=asyncio.subprocess.PIPE)
    os.close(reads)
    os.write(writes, b"some")
    await server.in_flight.entered.wait()
    uploading.send_signal(signal.SIGINT)
    _, said = await uploading.communicate()
    os.close(writes)
    assert (uploading.returncode, said) == (1, b"\nAborted!\n")
    await server.in_flight.empty.wait()
    assert server.kept.records.found == {}
