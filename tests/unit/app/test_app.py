"""The composition root: where it listens, what it keeps and where, and how files are followed."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
import yaml

from tests.hub import RunningHub, settings_of
from toolhub_service.app.config_files.editing import read_or_make_key
from toolhub_service.app.config_files.key_file import KeyFile, KeyFileInvalid
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.policy_files import PolicyFile
from toolhub_service.app.listening import is_local
from toolhub_service.app.wiring.deps import SystemClock, SystemRandomness
from toolhub_service.app.workers import reserve_port
from toolhub_service.policy.live import LivePolicy
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.references import SchemaRefused

DENY = "rules: [{id: never, effect: DENY}]\n"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:0", "127.8.8.8:1", "localhost:1", "[::1]:0", "unix:/tmp/x", "unix:///tmp/x", "unix-abstract:x"],
)
def test_addresses_that_only_this_machine_reaches(address: str) -> None:
    assert is_local(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:0",
        "[::]:0",
        "10.0.0.1:1",
        "example.com:1",
        "localhost.example.com:1",
        "127.0.0.1.nip.io:1",
        ":1",
        "::1",
    ],
)
def test_addresses_that_others_may_reach(address: str) -> None:
    assert not is_local(address)


def test_each_file_has_its_setting_and_its_place_without_one(tmp_path: Path) -> None:
    plain = Paths(settings_of(tmp_path))
    assert plain.audit == tmp_path / "hub" / "audit.db"
    assert plain.policy == tmp_path / "hub" / "policy.yaml"
    chosen = Paths(settings_of(tmp_path, {"audit": {"file": "/elsewhere/a.db"}, "workspace": {"root": "/w"}}))
    assert (chosen.audit, chosen.workspaces) == (Path("/elsewhere/a.db"), Path("/w"))


async def test_schemas_of_built_in_tools_compile(hub: RunningHub) -> None:
    specs = hub.hub.toolbox.catalog.all()
    refused: dict[str, str] = {}
    for spec in specs:
        for schema in (spec.input_schema, spec.output_schema):
            try:
                compile_schema(schema)
            except SchemaRefused as refusal:
                refused[spec.name] = str(refusal)
    assert "core/util.time.now" in {spec.name for spec in specs}
    assert refused == {}


def test_data_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    paths = Paths(settings_of(tmp_path))
    paths.make()
    assert stat.S_IMODE(paths.data_dir.stat().st_mode) == 0o700


class TestSecretFile:
    def test_key_is_made_once_and_read_afterwards(self, tmp_path: Path) -> None:
        key = read_or_make_key(tmp_path / "plan.key")
        assert len(key) == 32
        assert read_or_make_key(tmp_path / "plan.key") == key
        assert stat.S_IMODE((tmp_path / "plan.key").stat().st_mode) == 0o600

    @pytest.mark.parametrize("text", ["", "00", "zz" * 32])
    def test_file_that_holds_no_key_is_refused_and_left_alone(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "plan.key").write_text(text)
        with pytest.raises(ValueError):  # noqa: PT011 - what kind of nonsense it was does not matter
            read_or_make_key(tmp_path / "plan.key")
        assert (tmp_path / "plan.key").read_text() == text


class TestKeyFile:
    @pytest.mark.promise("identity.keys-hashed")
    def test_key_is_shown_once_and_kept_as_a_hash(self, tmp_path: Path) -> None:
        file = KeyFile(tmp_path / "keys.yaml")
        key = file.create("robot")
        (stored,) = file.read().values()
        assert stored.name == "robot"
        assert key not in (tmp_path / "keys.yaml").read_text()
        assert stat.S_IMODE((tmp_path / "keys.yaml").stat().st_mode) == 0o600

    def test_revoking_removes_one_key_and_states_whether_there_was_one(self, tmp_path: Path) -> None:
        file = KeyFile(tmp_path / "keys.yaml")
        file.create("robot")
        file.create("robot")
        first, second = file.read()
        assert file.revoke(first)
        assert not file.revoke(first)
        assert list(file.read()) == [second]

    def test_a_missing_file_means_no_keys(self, tmp_path: Path) -> None:
        assert KeyFile(tmp_path / "none.yaml").read() == {}

    @pytest.mark.parametrize("text", ["[", "- a", "thk_1: {name: x}", "thk_1: {name: x, sha256: y, extra: z}"])
    def test_file_of_something_else_is_refused_by_name(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "keys.yaml").write_text(text)
        with pytest.raises(KeyFileInvalid, match=r"keys\.yaml"):
            KeyFile(tmp_path / "keys.yaml").read()

    def test_a_crash_while_writing_never_leaves_half_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = KeyFile(tmp_path / "keys.yaml")
        file.create("robot")
        before = (tmp_path / "keys.yaml").read_bytes()

        def fails(*_: object, **__: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(yaml, "safe_dump", fails)
        with pytest.raises(OSError, match="disk full"):
            file.create("other")
        assert (tmp_path / "keys.yaml").read_bytes() == before


class TestPolicyFile:
    def test_a_missing_file_means_the_starter_policy(self, tmp_path: Path) -> None:
        policy = LivePolicy()
        before = policy.revision
        assert PolicyFile(tmp_path / "policy.yaml", policy, required=False).load().applied
        assert policy.revision == before

    def test_change_is_noticed_and_loaded_whole(self, tmp_path: Path) -> None:
        policy = LivePolicy()
        file = PolicyFile(tmp_path / "policy.yaml", policy, required=False)
        file.load()
        assert not file.has_changed()
        (tmp_path / "policy.yaml").write_text(DENY)
        assert file.has_changed()
        change = file.load()
        assert (change.applied, change.revision) == (True, policy.revision)
        assert change.revision != change.previous_revision
        assert not file.has_changed()

    def test_a_vanished_file_keeps_the_policy_in_force(self, tmp_path: Path) -> None:
        policy = LivePolicy()
        path = tmp_path / "policy.yaml"
        path.write_text(DENY)
        file = PolicyFile(path, policy, required=False)
        kept = file.load().revision
        path.unlink()
        assert file.has_changed()
        assert (file.load().applied, policy.revision) == (False, kept)

    def test_file_that_was_cut_off_while_it_was_written_does_not_become_the_starter(self, tmp_path: Path) -> None:
        policy = LivePolicy()
        path = tmp_path / "policy.yaml"
        path.write_text(DENY)
        file = PolicyFile(path, policy, required=False)
        kept = file.load().revision
        for cut in ("", " \n"):
            path.write_text(cut)
            change = file.load()
            assert (change.applied, policy.revision) == (False, kept)
            assert "policy.yaml: it is empty" in change.problem
        path.write_text("{}")
        assert file.load().applied

    def test_file_that_the_configuration_names_must_be_there(self, tmp_path: Path) -> None:
        assert not PolicyFile(tmp_path / "policy.yaml", LivePolicy(), required=True).load().applied

    @pytest.mark.parametrize("text", ["rules: [", "rulez: []", "rules: [{id: x, effect: PERHAPS}]", "[]"])
    def test_an_invalid_file_keeps_the_policy_in_force_and_reports_why(self, tmp_path: Path, text: str) -> None:
        policy = LivePolicy()
        path = tmp_path / "policy.yaml"
        path.write_text(DENY)
        file = PolicyFile(path, policy, required=False)
        file.load()
        kept = policy.revision
        path.write_text(text)
        change = file.load()
        assert (change.applied, change.revision, policy.revision) == (False, kept, kept)
        assert "policy.yaml" in change.problem

    def test_an_unreadable_file_keeps_the_policy_in_force(self, tmp_path: Path) -> None:
        path = tmp_path / "policy.yaml"
        path.write_bytes(b"\xff\xfe\x00")
        change = PolicyFile(path, LivePolicy(), required=False).load()
        assert not change.applied
        assert "policy.yaml" in change.problem


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_reserved_port_is_free_for_those_who_share_it_and_for_no_other_hub(host: str) -> None:
    held, address = reserve_port(f"{host}:0")
    assert held is not None
    with held, socket.socket(held.family, socket.SOCK_STREAM) as worker:
        assert address.startswith(f"{host}:")
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        worker.bind(held.getsockname())
        worker.listen()
        with pytest.raises(OSError, match="in use"):
            reserve_port(address)


def test_unix_socket_needs_no_reserving() -> None:
    assert reserve_port("unix:/tmp/x:0") == (None, "unix:/tmp/x:0")


def test_clock_and_randomness_are_real() -> None:
    clock, randomness = SystemClock(), SystemRandomness()
    assert clock.monotonic_s() <= clock.monotonic_s()
    assert clock.unix_ms() > 1_700_000_000_000
    assert 1.0 <= randomness.uniform(1.0, 2.0) <= 2.0
    assert len(randomness.token_hex(8)) == 16
    assert randomness.token_hex(8) != randomness.token_hex(8)


def test_environment_of_a_worker_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolhub_service.app.workers import WORKER_VARIABLE, worker_number

    monkeypatch.delenv(WORKER_VARIABLE, raising=False)
    assert worker_number() is None
    monkeypatch.setitem(os.environ, WORKER_VARIABLE, "3")
    assert worker_number() == 3
