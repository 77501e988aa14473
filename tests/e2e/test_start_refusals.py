"""What keeps `toolhub serve` from starting keeps `toolhub doctor` from saying that all is well: the same words, exit 1.

Each refusal that a start check declares is brought about here, so that none is declared and never found.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import redis
import yaml

from tests.e2e.command_line import CommandLine, CommandResult, serving
from tests.e2e.terminal import ROOT, environment
from tests.free_port import free_port
from tests.services import RedisServer
from toolhub_service.app.config_files.editing import SecretFileInvalid
from toolhub_service.app.config_files.key_file import KeyFileInvalid
from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.start_checks import SEEN_BY_STARTING, START_CHECKS
from toolhub_service.app.start_refusals import StartRefused
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.errors.spec import HubReason, StartReason
from toolhub_service.settings.loading import SettingsInvalid

Harm = Callable[[Path], object]
"""Done to the data folder of a hub that has run and stopped."""

ABSENT = """
import importlib.abc, importlib.util, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith({packages!r}):
            raise ModuleNotFoundError(name, name=name)
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name.startswith({packages!r}) else found(name, *of)
sys.meta_path.insert(0, Absent())
"""
"""Imported by Python at its start: these packages are not installed."""


class Refusal(NamedTuple):
    subject: str
    why: HubReason | type[Exception]
    harm: Harm = lambda folder: None
    settings: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    absent: tuple[str, ...] = ()
    by_workers: bool = False
    """The workers say why, and the line of the command refers to them."""


def gone(*names: str) -> Harm:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def written(name: str, text: str = "no such thing\n" * 500) -> Harm:
    def write(folder: Path) -> None:
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)

    return write


def folder_in_place_of(name: str) -> Harm:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir(mode=0o700)

    return make


def file_in_place_of_artifacts(folder: Path) -> None:
    shutil.rmtree(folder / "artifacts", ignore_errors=True)
    written("artifacts")(folder)


def file_in_place_of_all(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


BUCKET = {"AWS_ACCESS_KEY_ID_FILE": "/nowhere/at/all"}
AWAY = f"127.0.0.1:{free_port()}"
REFUSALS = [
    Refusal("data folder", OSError, file_in_place_of_all),
    Refusal("auth", ListenRefused, settings={"server": {"listen": "0.0.0.0:0"}}),
    Refusal("auth", KeyFileInvalid, written("api-keys.yaml")),
    Refusal("auth", OSError, folder_in_place_of("api-keys.yaml")),
    Refusal(
        "tracing",
        StartReason.OTLP_EXPORTER_MISSING,
        settings={"tracing": {"otlp_endpoint": "http://127.0.0.1:4317"}},
        absent=("opentelemetry.exporter",),
    ),
    Refusal("audit log", StartReason.AUDIT_LOG_CHANGED, gone("audit.db")),
    Refusal("audit log", StartReason.AUDIT_LOG_CHANGED, gone("audit-checkpoints.jsonl")),
    Refusal("audit log", StartReason.AUDIT_LOG_CHANGED, gone("audit.db", "audit-checkpoints.jsonl")),
    Refusal("audit log", StartReason.AUDIT_KEY_MISSING, gone("audit.key")),
    Refusal("audit log", StartReason.AUDIT_KEY_INVALID, written("audit.key")),
    Refusal("audit log", StartReason.AUDIT_KEY_EXPOSED, lambda folder: (folder / "audit.key").chmod(0o644)),
    Refusal("audit log", ToolFailure, written("audit.db")),
    Refusal(
        "stores",
        StartReason.STORES_NOT_SHARED,
        settings={"stores": {"kind": "memory"}, "server": {"workers": 2}},
        by_workers=True,
    ),
    Refusal("stores", StartReason.STORES_NEED_POSTGRES, settings={"stores": {"kind": "postgres"}}),
    Refusal("stores", StartReason.ENGINE_NEEDS_REDIS, settings={"jobs": {"engine": "docket"}}),
    Refusal(
        "stores",
        StartReason.EXTRA_MISSING,
        settings={"stores": {"redis_url": f"redis://{AWAY}/0"}},
        absent=("redis",),
    ),
    Refusal("hub's store", ToolFailure, written("hub.db")),
    Refusal("hub's store", ToolFailure, folder_in_place_of("hub.db")),
    Refusal("redis", StartReason.REDIS_URL_INVALID, settings={"stores": {"redis_url": "http://redis"}}),
    Refusal("redis", ToolFailure, settings={"stores": {"redis_url": f"redis://me:canary@{AWAY}/0"}}),
    Refusal("postgres", StartReason.POSTGRES_URL_INVALID, settings={"stores": {"postgres_url": "what is this"}}),
    Refusal("postgres", ToolFailure, settings={"stores": {"postgres_url": f"postgresql://me:canary@{AWAY}/hub"}}),
    Refusal("artifacts", StartReason.BUCKET_URL_INVALID, settings={"artifacts": {"bucket_url": "http://bucket"}}),
    Refusal(
        "artifacts",
        StartReason.BUCKET_SECRET_UNREADABLE,
        settings={"artifacts": {"bucket_url": "s3://bucket"}},
        env=BUCKET,
    ),
    Refusal(
        "artifacts",
        StartReason.EXTRA_MISSING,
        settings={"artifacts": {"bucket_url": "s3://bucket"}},
        absent=("obstore",),
    ),
    Refusal("artifacts", ToolFailure, file_in_place_of_artifacts),
    Refusal(
        "audit export",
        StartReason.BUCKET_URL_INVALID,
        settings={"audit": {"export": {"bucket_url": "http://bucket"}}},
    ),
    Refusal(
        "audit export",
        StartReason.BUCKET_SECRET_UNREADABLE,
        settings={"audit": {"export": {"bucket_url": "s3://bucket"}}},
        env=BUCKET,
    ),
    Refusal(
        "audit export",
        StartReason.EXTRA_MISSING,
        settings={"audit": {"export": {"otlp_endpoint": "http://127.0.0.1:4318"}}},
        absent=("opentelemetry.proto",),
    ),
    Refusal(
        "credentials",
        StartReason.SEALING_KEY_UNUSABLE,
        settings={"credentials": {"keys": [{"id": "first", "env": "NOT_SET_ANYWHERE"}]}},
    ),
    Refusal(
        "webhook",
        StartReason.WEBHOOK_INVALID,
        settings={"approvals": {"webhook_url": "https://example.com/hook"}},
    ),
    Refusal("search", StartReason.EMBEDDER_UNUSABLE, settings={"search": {"embedder": "nothing.here:Embedder"}}),
    Refusal("plan key", SecretFileInvalid, written("plan.key")),
    Refusal("plan key", OSError, folder_in_place_of("plan.key")),
    Refusal(
        "mcp state key",
        SecretFileInvalid,
        written("state.key"),
        settings={"server": {"mcp": {"state_key_file": "hub/state.key"}}},
    ),
    Refusal("mcp state key", OSError, settings={"server": {"mcp": {"state_key_file": "/nowhere/at/all"}}}),
    Refusal("policy", StartRefused, written("policy.yaml", "nonsense: 1")),
    Refusal("sources", SettingsInvalid, written("sources.yaml", "sources: [1]")),
]
ELSEWHERE = {
    ("redis", StartReason.REDIS_EVICTS),
    ("postgres", StartReason.STORE_TOO_NEW),
}
"""Refusals that need a server, in tests of their own below."""


@pytest.fixture(scope="module")
def stopped_hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a hub that has served and was stopped."""
    home = tmp_path_factory.mktemp("stopped")
    with serving(home, "--data-dir", str(home / "hub")):
        pass
    return home / "hub"


@pytest.fixture
def cli(tmp_path: Path, stopped_hub: Path) -> CommandLine:
    shutil.copytree(stopped_hub, tmp_path / "hub", symlinks=True)
    return CommandLine(tmp_path)


def commands(cli: CommandLine, given: Refusal) -> tuple[CommandResult, CommandResult]:
    """What `serve` and `doctor` end with on the data folder with these settings."""
    given.harm(cli.home / "hub")
    settings = {"metrics": {"listen": "127.0.0.1:0"}, **given.settings}
    settings["server"] = {"listen": "127.0.0.1:0", **given.settings.get("server", {})}
    file = cli.home / "toolhub.yaml"
    file.write_text(yaml.safe_dump(settings))
    options = ("--config", str(file), "--data-dir", str(cli.home / "hub"))
    run: Callable[..., CommandResult] = cli
    env = dict(given.env)
    if given.absent:
        (cli.home / "sitecustomize.py").write_text(ABSENT.format(packages=given.absent))
        env["PYTHONPATH"] = str(cli.home)
        run = _in_fresh_python(cli)
    return run("serve", *options, **env), run("doctor", "-o", "json", *options, **env)


def _in_fresh_python(cli: CommandLine) -> Callable[..., CommandResult]:
    def run(*words: str, **env: str) -> CommandResult:
        done = subprocess.run(
            [sys.executable, "-m", "toolhub_service", *words],
            env={**environment(cli.home), **env, "PYTHONPATH": os.pathsep.join([str(cli.home), str(ROOT)])},
            cwd=cli.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return CommandResult(done.stdout, done.stderr, done.returncode)

    return run


def failures(doctor: CommandResult) -> dict[str, list[str]]:
    """The words of each failed finding, in one line, by subject."""
    assert doctor.code == 1, doctor.out + doctor.err
    assert doctor.json["ok"] is False
    found: dict[str, list[str]] = {}
    for each in doctor.json["findings"]:
        if each["state"] == "fail":
            found.setdefault(each["name"], []).append(" ".join(f"{each['told']} {each['advice']}".split()))
    return found


@pytest.mark.parametrize(
    "given", REFUSALS, ids=lambda given: f"{given.subject}: {getattr(given.why, 'name', given.why)}"
)
def test_the_doctor_tells_what_keeps_a_hub_from_starting_in_its_words(cli: CommandLine, given: Refusal) -> None:
    serve, doctor = commands(cli, given)
    assert serve.code == 1, serve.out + serve.err
    line = " ".join(serve.err.rpartition("Error: ")[2].split())
    (told,) = failures(doctor)[given.subject]
    if given.by_workers:
        assert told.partition(" `toolhub serve`")[0] in " ".join(serve.err.split())
    else:
        assert told.startswith(line)
    assert "canary" not in doctor.out


def test_every_declared_refusal_is_brought_about() -> None:
    declared = {(each.name, why) for each in START_CHECKS for why in each.refusals}
    assert declared - {(given.subject, given.why) for given in REFUSALS} == ELSEWHERE
    reasons = {why for each in START_CHECKS for why in each.refusals if isinstance(why, StartReason)}
    assert set(StartReason) - reasons == SEEN_BY_STARTING.keys()


def test_a_hub_that_stopped_well_would_start_again(cli: CommandLine) -> None:
    before = {path: path.read_bytes() for path in (cli.home / "hub").rglob("*") if path.is_file()}
    listens = {"TOOLHUB_SERVER_LISTEN": "127.0.0.1:0", "TOOLHUB_METRICS_LISTEN": "127.0.0.1:0"}
    doctor = cli("doctor", "-o", "json", "--data-dir", str(cli.home / "hub"), **listens)
    assert doctor.json["ok"] is True, doctor.out
    assert before == {path: path.read_bytes() for path in (cli.home / "hub").rglob("*") if path.is_file()}


def test_a_redis_that_forgets_is_refused_by_both(cli: CommandLine, own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("maxmemory", "100mb")
        admin.config_set("maxmemory-policy", "allkeys-lru")
    given = Refusal("redis", StartReason.REDIS_EVICTS, settings={"stores": {"redis_url": own_redis.url}})
    serve, doctor = commands(cli, given)
    (told,) = failures(doctor)["redis"]
    assert "Set maxmemory-policy noeviction." in told
    assert told in " ".join(serve.err.split())


def test_tables_of_a_newer_hub_are_refused_by_both(cli: CommandLine, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE TABLE store_migrations (name text PRIMARY KEY)")
        admin.execute("INSERT INTO store_migrations (name) VALUES ('9999_future.sql')")
    settings = {"stores": {"postgres_url": postgres_url}}
    serve, doctor = commands(cli, Refusal("postgres", StartReason.STORE_TOO_NEW, settings=settings))
    (told,) = failures(doctor)["postgres"]
    assert told.startswith("The tables in PostgreSQL belong to a newer version of the hub (9999_future.sql)")
    assert serve.code == 1


# Ports


@contextmanager
def listener() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("subject", "setting"), [("server port", "TOOLHUB_SERVER_LISTEN"), ("metrics port", "TOOLHUB_METRICS_LISTEN")]
)
def test_a_port_that_another_program_holds_is_an_error_that_names_it(
    cli: CommandLine, subject: str, setting: str
) -> None:
    others = {"TOOLHUB_SERVER_LISTEN": "127.0.0.1:0", "TOOLHUB_METRICS_LISTEN": "127.0.0.1:0"}
    with listener() as port:
        env = {**others, setting: f"127.0.0.1:{port}"}
        serve = cli("serve", "--data-dir", str(cli.home / "hub"), **env)
        doctor = cli("doctor", "-o", "json", "--data-dir", str(cli.home / "hub"), **env)
    assert serve.code == 1
    (told,) = failures(doctor)[subject]
    reason, _, holder = told.partition(" It is held by ")
    assert reason in " ".join(serve.err.split())
    assert holder.startswith(f"process {os.getpid()} (`")


def test_the_hub_itself_may_hold_its_port_and_one_of_another_folder_may_not(cli: CommandLine) -> None:
    own = cli.home / "hub"
    with serving(cli.home / "home", "--data-dir", str(own)) as running:
        env = {"TOOLHUB_SERVER_LISTEN": running.address, "TOOLHUB_METRICS_LISTEN": "127.0.0.1:0"}
        doctor = running("doctor", "-o", "json", "--data-dir", str(own), **env)
        assert doctor.json["ok"] is True, doctor.out
        doctor = running("doctor", "-o", "json", "--data-dir", str(cli.home / "other"), **env)
        (told,) = failures(doctor)["server port"]
        # A hub shows its open files, and so who it is, to root only.
        assert "It is held by process " in told or os.geteuid() != 0


def test_a_unix_socket_in_a_folder_that_is_not_there_is_refused_by_both(cli: CommandLine) -> None:
    env = {"TOOLHUB_SERVER_LISTEN": f"unix:{cli.home}/nowhere/hub.sock", "TOOLHUB_METRICS_LISTEN": "127.0.0.1:0"}
    assert cli("serve", "--data-dir", str(cli.home / "hub"), **env).code == 1
    (told,) = failures(cli("doctor", "-o", "json", "--data-dir", str(cli.home / "hub"), **env))["server port"]
    assert f"{cli.home}/nowhere is missing" in told
