"""A hub does not start on what others may write, nor where keys would cross the network in the clear; it says what to
type. At befa727 the hub started, but for a loose audit key, which it refused by itself."""

from __future__ import annotations

import grp
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.command_line import CommandLine
from tests.hub import request, running_hub, settings_of
from tests.rpc.statuses import failed
from toolhub_service.app.config_files import modes as file_modes
from toolhub_service.app.config_files.modes import FilesLoose, check_files, repairs
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.hub import open_hub
from toolhub_service.app.listening import ListenRefused, listening_of
from toolhub_service.app.serving import reload_keys

TOOL = "core/util.time.now"
KEYS = {"auth": {"modes": ["api-key"]}}


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (folder := tmp_path / "hub").mkdir(mode=0o700)
    return folder


def written(path: Path, text: str = "{}", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
@pytest.mark.parametrize(
    "name",
    [
        *(
            "policy.yaml",
            "api-keys.yaml",
            "sources.yaml",
            "plan.key",
            "audit.key",
            "audit.db",
            "audit.db-wal",
            "hub.db",
        ),
        "audit-checkpoints.jsonl",
    ],
)
async def test_a_file_that_others_may_write_keeps_the_hub_from_starting(
    tmp_path: Path, data_dir: Path, name: str, mode: int
) -> None:
    path = written(data_dir / name, mode=mode)
    with pytest.raises(FilesLoose) as refused:
        await open_hub(settings_of(tmp_path))
    assert f"\n  chmod go-w {path}" in str(refused.value)
    assert repairs(settings_of(tmp_path, {"loose_files": "warn"})), "told all the same"
    check_files(settings_of(tmp_path, {"loose_files": "warn"}))


def test_the_printed_commands_repair_every_file(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands, typed as they stand, leave nothing to repair."""
    monkeypatch.setattr(file_modes, "_is_private", lambda _: False)
    secret = written(tmp_path / "a secret's file", "x", 0o666)
    certificate = written(tmp_path / "tls.pem", mode=0o664)
    source = {"command": "program", "env": {"TOKEN": {"file": str(secret)}}}
    written(data_dir / "sources.yaml", json.dumps({"sources": {"a": source}}), 0o660)
    written(data_dir / "plan.key", mode=0o644)
    (elsewhere := tmp_path / "open").mkdir()
    elsewhere.chmod(0o777)
    (data_dir / "policy.yaml").symlink_to(written(elsewhere / "policy.yaml", mode=0o664))
    data_dir.chmod(0o770)
    settings = settings_of(tmp_path, {"server": {"tls": {"certificate_file": str(certificate)}}})
    commands = repairs(settings)
    touched = {shlex.split(command)[-1] for command in commands}
    assert {str(secret), str(certificate), str(elsewhere), str(data_dir), str(data_dir / "plan.key")} <= touched
    assert len(commands) == 7
    for command in commands:
        subprocess.run(shlex.split(command), check=True)
    assert repairs(settings) == []


@pytest.mark.parametrize(
    ("mode", "is_private", "is_loose"),
    [
        (0o777, True, True),
        (0o1777, True, False),
        (0o770, False, True),
        (0o2775, True, False),
        (0o1770, False, False),
        (0o755, False, False),
    ],
)
def test_a_folder_is_loose_where_others_may_replace_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_private: bool, is_loose: bool
) -> None:
    """A sticky folder lets owners alone replace things; a pod's fsGroup is a group of nobody else."""
    monkeypatch.setattr(file_modes, "_is_private", lambda _: is_private)
    (above := tmp_path / "hub").mkdir()
    (above / "inner").mkdir()
    above.chmod(mode)
    settings = settings_of(tmp_path, {"data_dir": str(above / "inner")})
    assert repairs(settings) == ([f"chmod go-w {above}"] if is_loose else [])


def test_an_unwritable_mount_is_not_checked(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes mounts ConfigMaps and Secrets: links to files behind a folder of mode 0777."""
    (versioned := data_dir / "..2026").mkdir()
    versioned.chmod(0o777)
    (data_dir / "..data").symlink_to("..2026")
    written(versioned / "policy.yaml", mode=0o666)
    (data_dir / "policy.yaml").symlink_to("..data/policy.yaml")
    assert len(repairs(settings_of(tmp_path))) == 2
    real = os.statvfs

    def read_only(path: Path) -> os.statvfs_result:
        values = list(real(path))
        values[8] |= os.ST_RDONLY
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", read_only)
    assert repairs(settings_of(tmp_path)) == []


def test_a_group_with_another_member_is_no_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        gr_mem = ("somebody-else",)

    assert file_modes._is_private.__wrapped__(2**20)
    monkeypatch.setattr(grp, "getgrgid", lambda _: Group)
    assert not file_modes._is_private.__wrapped__(2**20)


def test_serve_and_doctor_report_the_same(cli: CommandLine) -> None:
    policy = written(cli.home / "policy.yaml", mode=0o664)
    config = written(cli.home / "toolhub.yaml", f"policy: {{file: {policy}}}\nserver: {{listen: '127.0.0.1:0'}}", 0o666)
    for words in (("serve",), ("serve", "--workers", "2")):
        refused = cli(*words, "--config", str(config))
        assert refused.code == 1
        typed = re.findall(r"^ +(chmod .*)$", refused.err, re.MULTILINE)
        assert typed == [f"chmod go-w {config}", f"chmod go-w {policy}"]
    result = cli("doctor", "--config", str(config), "-o", "json")
    assert result.code == 1
    found = [finding for finding in result.json["findings"] if finding["name"] == "file modes"]
    assert [(finding["state"], finding["advice"]) for finding in found] == [("fail", each) for each in typed]


# While it runs


@pytest.mark.parametrize("put_right", [False, True])
async def test_a_file_that_becomes_loose_is_not_read_until_it_is_put_right(tmp_path: Path, put_right: bool) -> None:
    policy = "grants: [{principals: [robot]}]"
    async with running_hub(tmp_path, policy=policy, settings=KEYS) as running:
        paths = Paths(running.hub.settings)
        key = paths.key_file().create("robot")
        for path in (paths.api_keys, paths.policy):
            path.chmod(0o666)
        paths.policy.write_text("grants: [{principals: [robot, mallory]}]")
        change = running.hub.policy_file.load()
        reload_keys(running.hub, paths.key_file())
        assert not change.applied
        assert f"chmod go-w {paths.policy}" in change.problem
        if put_right:
            for path in (paths.api_keys, paths.policy):
                path.chmod(0o600)
            assert running.hub.policy_file.has_changed(), "a mode is a change"
            assert running.hub.policy_file.load().applied
            reload_keys(running.hub, paths.key_file())
            assert (await running.invoke(TOOL, metadata=(("x-api-key", key),))).ok
        else:
            call = running.stub.Invoke(request(TOOL), metadata=(("x-api-key", key),))
            assert (await failed(call)).reason == "CREDENTIAL_REFUSED"


# Keys in the clear


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50051", "hub.example.com:50051"])
def test_keys_never_cross_the_network_unencrypted_by_default(tmp_path: Path, address: str) -> None:
    def asked(**server: object) -> Callable[[], object]:
        return lambda: listening_of(settings_of(tmp_path, {**KEYS, "server": {"listen": address, **server}}))

    with pytest.raises(ListenRefused, match="TOOLHUB_SERVER_ALLOW_PLAINTEXT"):
        asked()()
    asked(allow_plaintext=True)()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "unix:/tmp/toolhub.sock", "[::1]:0"])
def test_keys_need_no_tls_on_this_machine(tmp_path: Path, address: str) -> None:
    assert listening_of(settings_of(tmp_path, {**KEYS, "server": {"listen": address}})).address == address
