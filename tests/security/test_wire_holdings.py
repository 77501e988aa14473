"""What callers and the hub keep, attacked over the wire: workspaces, data folder, environment, open ports."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.fakes.keyed_hub import KeyedHub, keyed_hub, status
from tests.hub import CALL_TIMEOUT_S, request
from toolhub.v1 import artifact_service_pb2
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.app.config_files.paths import Paths


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[KeyedHub]:
    async with keyed_hub(tmp_path) as made:
        yield made


# Workspaces


def folders_of_callers(root: Path) -> list[str]:
    """Beside them lies only the folder in which the hub counts their bytes, where no name of a caller leads."""
    return [folder.name for folder in root.iterdir() if folder.name != ".usage"]


@pytest.mark.promise("identity.tenants-apart")
async def test_two_callers_with_the_same_ids_see_nothing_of_each_other(keyed: KeyedHub) -> None:
    await keyed.invoke(
        "alice", "core/fs.writeText", {"path": "a.txt", "text": "c4nary"}, request_id="r", session_id="s"
    )
    for tool, args in (
        ("core/fs.readText", {"path": "a.txt"}),
        ("core/fs.readText", {"path": "../../alice/r/a.txt"}),
        ("core/fs.listDir", {"path": "."}),
        ("core/fs.findFiles", {"pattern": "**"}),
        ("core/fs.searchText", {"query": "c4nary"}),
        ("core/exec.run", {"argv": ["cat", "../../alice/r/a.txt"]}),
        ("core/exec.run", {"argv": ["cat", "a.txt"], "cwd": "../../alice/r"}),
    ):
        result = await keyed.invoke("bob", tool, args, request_id="r", session_id="s")
        assert b"c4nary" not in result.result_json, tool
        assert b"a.txt" not in result.result_json, tool


async def test_principals_of_any_name_have_folders_of_their_own(tmp_path: Path) -> None:
    hostile = [
        "..",
        ".",
        ".usage",
        "a/../alice",
        "alice/",
        "alice ",
        "Alice",
        "ａlice",
        "../../etc",
        "-rf",
        "%2e%2e",
        "a" * 300,
    ]
    async with keyed_hub(tmp_path, *hostile) as keyed:
        for name in ("alice", *hostile):
            wrote = await keyed.invoke(name, "core/fs.writeText", {"path": "me", "text": name}, request_id="r")
            assert wrote.ok, (name, wrote.error.message)
        for name in ("alice", *hostile):
            read = await keyed.invoke(name, "core/fs.readText", {"path": "me"}, request_id="r")
            assert json.loads(read.result_json)["text"] == name
        root = Paths(keyed.hub.hub.settings).workspaces
        assert len(folders_of_callers(root)) == 1 + len(hostile)
        assert len(list((root / ".usage").iterdir())) == 1 + len(hostile), "each has an account of its own"
        assert not (root.parent / "me").exists()


async def test_request_ids_that_climb_are_refused_or_harmless(keyed: KeyedHub) -> None:
    for hostile in ("../../../bob/r", "..", ".", "a\0b", "-rf", "a" * 129):
        ask = keyed.hub.stub.Invoke(
            request("core/fs.writeText", {"path": "x", "text": "x"}, request_id=hostile), metadata=keyed.of("alice")
        )
        assert (await status(ask))[0] is grpc.StatusCode.INVALID_ARGUMENT, hostile
    assert (await keyed.invoke("alice", "core/fs.writeText", {"path": "x", "text": "x"}, request_id="a/../bob/r")).ok
    root = Paths(keyed.hub.hub.settings).workspaces
    assert folders_of_callers(root) == ["alice"]
    assert [folder.name for folder in (root / "alice").iterdir()] == ["a%2F..%2Fbob%2Fr"]


async def test_links_in_the_data_folder_lead_no_call_out_of_it(keyed: KeyedHub, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("c4nary")
    (root := Paths(keyed.hub.hub.settings).workspaces).mkdir(exist_ok=True)
    (root / "alice").symlink_to(outside)
    (root / "bob").mkdir()
    (root / "bob" / "r").symlink_to(outside)
    for name in ("alice", "bob"):
        for tool, args in (("core/fs.readText", {"path": "a.txt"}), ("core/fs.listDir", {"path": "."})):
            result = await keyed.invoke(name, tool, args, request_id="r")
            assert not result.ok
            assert str(tmp_path) not in str(result)
    assert [entry.name for entry in outside.iterdir()] == ["a.txt"]


# Files and environment


async def test_everything_the_hub_keeps_is_for_its_owner_only(keyed: KeyedHub) -> None:
    await keyed.invoke("alice", "core/fs.writeText", {"path": "d/a.txt", "text": "a"}, request_id="r")
    job = await keyed.hub.submit("core/util.hash.sha256Text", {"text": "a"}, metadata=keyed.of("alice"))
    await keyed.hub.watched(job.job_id, metadata=keyed.of("alice"))
    parts = [
        artifact_service_pb2.WriteArtifactRequest(header=artifact_service_pb2.ArtifactHeader()),
        artifact_service_pb2.WriteArtifactRequest(chunk=b"a"),
    ]
    await ArtifactServiceStub(keyed.hub.channel).WriteArtifact(iter(parts), metadata=keyed.of("alice"))
    await keyed.hub.events()
    paths = Paths(keyed.hub.hub.settings)
    assert stat.S_IMODE(paths.data_dir.stat().st_mode) == 0o700
    kept = {path: stat.S_IMODE(path.lstat().st_mode) for path in paths.data_dir.rglob("*") if path != paths.policy}
    assert {path.name for path in kept} >= {
        "api-keys.yaml",
        "audit.db",
        "audit.db-wal",
        "audit.key",
        "plan.key",
        "hub.db",
        "artifacts",
        "d",
    }
    for path, mode in kept.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert not any(key.encode() in paths.key_file()._path.read_bytes() for key in keyed.keys.values())


async def test_a_command_sees_no_variable_of_the_hub(keyed: KeyedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_CANARY_TOKEN", "c4nary-of-the-hub")
    result = await keyed.invoke("alice", "core/exec.run", {"argv": ["env"]}, request_id="r")
    lines = json.loads(result.result_json)["stdout"].splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names <= {"PATH", "LANG", "HOME", "TMPDIR", "PWD", "OLDPWD"}
    assert b"c4nary" not in result.SerializeToString()


# What answers without a credential


async def test_health_and_reflection_disclose_the_contract_and_no_more(keyed: KeyedHub) -> None:
    health = health_pb2_grpc.HealthStub(keyed.hub.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(keyed.hub.channel)
    call = stub.ServerReflectionInfo(iter([ask]), timeout=CALL_TIMEOUT_S)
    text = str(await call.read())
    call.cancel()
    assert "toolhub.v1.ToolService" in text
    for secret in ("alice", "core/", str(Paths(keyed.hub.hub.settings).data_dir)):
        assert secret not in text
    assert await keyed.hub.events() == []


async def test_the_metrics_port_serves_numbers_and_no_names_of_callers(tmp_path: Path) -> None:
    async with keyed_hub(tmp_path, metrics={"listen": "127.0.0.1:0"}) as keyed:
        await keyed.invoke("alice", "core/fs.readText", {"path": "c4nary.txt"}, request_id="r-c4nary")
        job = await keyed.hub.submit(
            "core/fs.readText", {"path": "c4nary.txt"}, request_id="r-c4nary", metadata=keyed.of("alice")
        )
        await keyed.hub.watched(job.job_id, metadata=keyed.of("alice"))
        port = keyed.hub.hub.observing.metrics_port
        for target in (
            b"/metrics",
            b"/healthz",
            b"/readyz",
            b"/",
            b"/../../audit.key",
            b"/metrics/../audit.db",
            b"/debug/pprof",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            body = await reader.read()
            writer.close()
            assert body.split(b" ")[1] == (b"200" if target in (b"/metrics", b"/healthz", b"/readyz") else b"404"), (
                target
            )
            for secret in (
                b"alice",
                b"c4nary",
                job.job_id.encode(),
                keyed.keys["alice"].encode(),
                str(tmp_path).encode(),
            ):
                assert secret not in body
