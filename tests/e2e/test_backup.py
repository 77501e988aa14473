"""A backup of a hub that goes on working, and its way back: typed as an operator types it, on real data folders."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.archives import guard_extraction
from tests.e2e.command_line import CommandLine, serving
from tests.hub import OPEN_POLICY
from toolhub.v1 import artifact_service_pb2 as artifacts_pb
from toolhub.v1 import call_pb2, tool_service_pb2
from toolhub.v1 import job_service_pb2 as jobs_pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.backup.signing import sign
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.settings.document import Settings

ENOUGH = 12
"""Rounds of work before a backup is taken."""


@dataclass
class HubLoad:
    """A client that writes files, submits jobs, keeps artifacts and deletes some, without a pause."""

    address: str
    jobs: list[str] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    """By artifact id, of those that are never deleted."""
    stopped: threading.Event = field(default_factory=threading.Event)
    progress: threading.Condition = field(default_factory=threading.Condition)
    failure: BaseException | None = None
    rounds: int = 0

    def run(self) -> None:
        try:
            with grpc.insecure_channel(self.address) as channel:
                while not self.stopped.is_set():
                    self._round(channel)
                    with self.progress:
                        self.rounds += 1
                        self.progress.notify_all()
        except BaseException as failure:  # noqa: BLE001 - reported where it is awaited
            with self.progress:
                self.failure = failure
                self.progress.notify_all()

    def go_on(self, rounds: int) -> None:
        """Return when so many more rounds are done."""
        with self.progress:
            until = self.rounds + rounds
            assert self.progress.wait_for(lambda: self.rounds >= until or self.failure is not None, 120)
        assert self.failure is None, self.failure

    def _round(self, channel: grpc.Channel) -> None:
        number = self.rounds
        write = {"path": f"{number}.txt", "text": f"note {number}"}
        context = call_pb2.ExecContext(request_id="notes")
        intent = call_pb2.ToolIntent(
            tool="core/fs.writeText", args_json=json.dumps(write).encode(), purpose="keep notes"
        )
        answer = ToolServiceStub(channel).Invoke(tool_service_pb2.InvokeRequest(intent=intent, context=context))
        assert answer.result.ok, answer.result.error
        now = call_pb2.ToolIntent(tool="core/util.time.now", args_json=b"{}", purpose="tell the time")
        job = JobServiceStub(channel).SubmitJob(jobs_pb.SubmitJobRequest(intent=now)).job
        content = f"content {number}".encode() * 50
        header = artifacts_pb.ArtifactHeader(media_type="text/plain")
        parts = [
            artifacts_pb.WriteArtifactRequest(header=header),
            artifacts_pb.WriteArtifactRequest(chunk=content),
        ]
        artifacts: Any = ArtifactServiceStub(channel)
        artifact_id = artifacts.WriteArtifact(iter(parts)).artifact.artifact_id
        if number % 3:
            self.kept[artifact_id] = content
        else:
            artifacts.DeleteArtifact(artifacts_pb.DeleteArtifactRequest(artifact_id=artifact_id))
        self.jobs.append(job.job_id)


@dataclass(frozen=True)
class BackupsTaken:
    """Backups that were taken one after the other while the hub was at work, and what it had answered before each."""

    place: Path
    paths: Paths
    """Of the hub."""
    jobs: dict[str, list[str]]
    artifacts: dict[str, dict[str, bytes]]
    reports: dict[str, Any]

    @property
    def trust(self) -> tuple[str, str]:
        """The option that names the hub's public key."""
        return ("--trust", str(self.paths.backup_public_key))


BACKUPS = {"first.tar.gz": (), "second": ("--workspaces",), "third.tar": ("--without-secrets",)}


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> BackupsTaken:
    place = tmp_path_factory.mktemp("backups")
    home = tmp_path_factory.mktemp("home")
    data_dir = CommandLine(home).data_dir
    data_dir.mkdir(mode=0o700, parents=True)
    (data_dir / "policy.yaml").write_text(OPEN_POLICY)
    backups = BackupsTaken(place, Paths(Settings(data_dir=str(data_dir))), {}, {}, {})
    with serving(home) as cli:
        work = HubLoad(cli.address)
        thread = threading.Thread(target=work.run)
        thread.start()
        try:
            for name, options in BACKUPS.items():
                work.go_on(ENOUGH)
                backups.jobs[name], backups.artifacts[name] = list(work.jobs), dict(work.kept)
                result = cli("backup", str(place / name), *options, "--json")
                assert result.code == 0, result.err
                backups.reports[name] = result.json
            work.go_on(1)  # it was not held up for good
        finally:
            work.stopped.set()
            thread.join()
        assert work.failure is None, work.failure
        refused = cli("restore", str(place / "second"), "--replace")
        assert (refused.code, "Stop it first" in refused.err) == (1, True)
        assert cli("audit", "verify").code == 0
    return backups


@pytest.mark.promise("backup.one-moment")
def test_a_hub_on_a_backup_that_was_taken_at_work_has_all_that_was_answered_before(
    backups: BackupsTaken, tmp_path: Path
) -> None:
    name = "first.tar.gz"
    assert (backups.place / name).stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o077 for path in (backups.place / "second").rglob("*")} == {0}
    cli = CommandLine(tmp_path)
    restored = cli("restore", str(backups.place / name), *backups.trust)
    assert restored.code == 0, restored.err
    assert cli.data_dir.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in cli.data_dir.rglob("*")} == {0}
    assert not list(cli.data_dir.glob(".*"))
    with serving(tmp_path) as hub, grpc.insecure_channel(hub.address) as channel:
        jobs, artifacts = JobServiceStub(channel), ArtifactServiceStub(channel)
        for job_id in backups.jobs[name]:
            assert jobs.GetJob(jobs_pb.GetJobRequest(job_id=job_id)).job.job_id == job_id
        for artifact_id, content in backups.artifacts[name].items():
            answers = artifacts.ReadArtifact(artifacts_pb.ReadArtifactRequest(artifact_id=artifact_id))
            assert b"".join(answer.chunk for answer in answers) == content
        verified = hub("audit", "verify", "--json").json
        assert verified["ok"], verified
        restored_in = [line for line in hub("audit", "tail", "-n", "200", "--json").out.splitlines() if name in line]
        assert restored_in, "the log does not say that it was restored"
        assert backups.reports[name]["signed_by"] in restored_in[-1]
        assert hub("call", "core/util.time.now").code == 0


@pytest.mark.promise("backup.one-moment")
def test_every_backup_is_one_moment_of_log_jobs_and_artifacts(backups: BackupsTaken, tmp_path: Path) -> None:
    for name in BACKUPS:
        cli = CommandLine(tmp_path / name)
        cli.home.mkdir()
        if name == "third.tar":  # its keys are kept elsewhere
            cli.data_dir.mkdir(parents=True, mode=0o700)
            with tarfile.open(backups.place / "first.tar.gz") as archive:
                for key in ("audit.key", "plan.key"):
                    shutil.copy(_extracted(archive, key, tmp_path / name), cli.data_dir / key)
                    (cli.data_dir / key).chmod(0o600)
        assert (
            cli("restore", str(backups.place / name), *backups.trust, *(["--replace"] * (name == "third.tar"))).code
            == 0
        )
        data = cli.data_dir
        assert cli("audit", "verify", "--data-dir", str(data)).code == 0
        with closing(sqlite3.connect(data / "hub.db")) as hub, closing(sqlite3.connect(data / "audit.db")) as audit:
            jobs = {job_id for (job_id,) in hub.execute("SELECT job_id FROM jobs")}
            digests = {digest for (digest,) in hub.execute("SELECT sha256 FROM artifacts")}
            recorded = {
                json.loads(body)["attributes"]["job_id"]
                for (body,) in audit.execute("SELECT body FROM events WHERE type = 'JOB_SUBMITTED'")
            }
        assert set(backups.jobs[name]) <= jobs, name
        assert recorded <= jobs, name
        assert len(jobs - recorded) <= 2, "more than the one that was being accepted"
        assert {digest for digest in digests if not (data / "artifacts" / digest[:2] / digest[2:]).is_file()} == set()
        assert (data / "workspaces").exists() is (name == "second")
        assert (data / "policy.yaml").read_text() == OPEN_POLICY
        assert backups.reports[name]["events"] >= len(backups.jobs[name]) * 3
        assert not (data / "backup.key").exists(), "whoever has a backup could sign the next"
    assert {"audit.key", "plan.key"} <= backups.reports["third.tar"]["left_out"].keys()


@pytest.mark.promise("backup.refuses")
def test_a_damaged_or_foreign_backup_is_refused_with_a_reason_and_changes_nothing(
    backups: BackupsTaken, tmp_path: Path
) -> None:
    cli = CommandLine(tmp_path)
    assert cli("backup", "--verify", str(backups.place / "second"), *backups.trust).code == 0
    for name, (damage, reason) in DAMAGES.items():
        copy = tmp_path / "copy"
        shutil.copytree(backups.place / "second", copy, symlinks=True)
        damage(copy)
        if (copy / "manifest.json").exists():  # as a hub would have written it that has the key
            signature, _ = sign(backups.paths, (copy / "manifest.json").read_bytes())
            (copy / "manifest.sig").write_bytes(signature)
        result = cli("restore", str(copy), *backups.trust)
        assert (result.code, reason in result.err) == (1, True), (name, result)
        assert not cli.data_dir.exists() or not list(cli.data_dir.iterdir()), name
        shutil.rmtree(copy)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes((backups.place / "first.tar.gz").read_bytes()[:-2_000])
    assert "was cut" in cli("backup", "--verify", str(cut), *backups.trust).err


@pytest.mark.promise("backup.signed")
def test_nobody_without_the_hubs_key_makes_a_backup_that_is_restored(backups: BackupsTaken, tmp_path: Path) -> None:
    """The forger holds every backup, and so `audit.key` and all that is in them."""
    cli = CommandLine(tmp_path)
    stranger = CommandLine(tmp_path / "stranger")
    stranger.home.mkdir()
    assert stranger("restore", str(backups.place / "second"), *backups.trust).code == 0
    (stranger.data_dir / "policy.yaml").write_text("extends: all\n")
    forged = tmp_path / "forged.tar.gz"
    result = stranger("backup", str(forged))
    assert (result.code, "backup.pub apart from the backups" in result.err) == (0, True), result
    copy = tmp_path / "copy"
    shutil.copytree(backups.place / "second", copy, symlinks=True)
    _forged_event(copy)
    (copy / "manifest.sig").unlink()
    edited, unsigned = "was changed after it was signed", "The backup is not signed"
    refused = {
        "by another key": (forged, backups.trust, "none of those in"),
        "by a key that nobody knows": (forged, (), "nothing here says whose"),
        "a signature taken away": (copy, backups.trust, unsigned),
        "the signature of another backup": (_resigned(backups, copy), backups.trust, edited),
        "the key that signs named as trusted": (
            forged,
            ("--trust", str(stranger.data_dir / "backup.key")),
            "stay there",
        ),
        "no file of keys": (forged, ("--trust", str(copy / "policy.yaml")), "holds no public keys"),
    }
    for name, (backup, options, reason) in refused.items():
        for option in ((), ("--allow-unsigned",)) if reason == edited else ((),):
            result = cli("restore", str(backup), *options, *option)
            assert (result.code, reason in result.err) == (1, True), (name, result)
            assert not cli.data_dir.exists() or not list(cli.data_dir.iterdir()), name
    allowed = cli("restore", str(forged), "--allow-unsigned")
    assert (allowed.code, "not signed by anybody known" in allowed.out) == (0, True), allowed
    exported = cli("audit", "export", "--data-dir", str(cli.data_dir)).out.splitlines()
    assert "nobody known (--allow-unsigned)" in exported[-1]


def test_existing_data_is_never_overwritten(backups: BackupsTaken, tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    second = str(backups.place / "second")
    assert "no data folder" in cli("backup", second + ".too").err
    for name in ("x.zip", "x.tar.zst", "X.GZ"):
        result = cli("backup", str(tmp_path / name))
        assert (result.code, "ends in .tar, .tar.gz, .tgz, or a folder" in result.err) == (1, True), result
    assert "There is no backup" in cli("restore", second + ".too").err
    assert not cli.data_dir.exists()
    cli.data_dir.mkdir(parents=True)
    assert "is no data folder of a hub" in cli("backup", second + ".too").err
    cli.data_dir.rmdir()
    assert "is there already" in cli("backup", second).err
    assert cli("restore", second, *backups.trust, "--dry-run").code == 0
    assert not cli.data_dir.exists()
    assert cli("restore", second, *backups.trust).code == 0
    (cli.data_dir / "policy.yaml").write_text("extends: none\n")
    refused = cli("restore", second)
    assert (refused.code, "is there already" in refused.err) == (1, True)
    assert (cli.data_dir / "policy.yaml").read_text() == "extends: none\n"
    assert cli("restore", second, *backups.trust, "--replace").code == 0
    (moved,) = cli.data_dir.glob("before-restore-*")
    assert (moved / "policy.yaml").read_text() == "extends: none\n"
    assert (moved / "audit.db").exists()
    with closing(sqlite3.connect(cli.data_dir / "hub.db")) as hub:
        hub.execute("PRAGMA user_version = 99")
    newer = cli("restore", second, "--replace")
    assert (newer.code, "later version" in newer.err) == (1, True)


def test_a_backup_is_restored_with_the_settings_that_keep_its_parts_where_they_lay(
    backups: BackupsTaken, tmp_path: Path
) -> None:
    cli, nowhere = CommandLine(tmp_path), "postgresql://127.0.0.1:1/none"
    second = str(backups.place / "second")
    for name, where, env in (
        ("audit.db", "in PostgreSQL", {"TOOLHUB_STORES_POSTGRES_URL": nowhere}),
        ("hub.db", "in Redis", {"TOOLHUB_STORES_REDIS_URL": "redis://127.0.0.1:1/0"}),
        ("artifacts", "in the bucket", {"TOOLHUB_ARTIFACTS_BUCKET_URL": "s3://bucket/hub"}),
    ):
        told = cli("restore", second, *backups.trust, "--dry-run", **env)
        assert (told.code, f"has {name}, which with these settings lies {where}" in told.err) == (1, True), told
        apart = str(tmp_path / name)
        data_dir = ("--data-dir", str(backups.paths.data_dir))
        assert cli("backup", apart, *data_dir, **env).code == 0
        told = cli("restore", apart, *backups.trust, "--dry-run")
        assert (told.code, f"lacks {name}, which lay {where}" in told.err) == (1, True), told
        assert cli("restore", apart, *backups.trust, "--dry-run", **env).code == 0


def test_a_hub_whose_stores_lie_in_postgresql_goes_on_with_what_its_folder_had(
    hub_postgres_url: str, tmp_path: Path
) -> None:
    """The machine is lost, the database is not."""
    lost, new, backup = tmp_path / "lost", CommandLine(tmp_path / "new"), str(tmp_path / "backup.tar.gz")
    env = {"TOOLHUB_STORES_KIND": "postgres", "TOOLHUB_STORES_POSTGRES_URL": hub_postgres_url}
    with serving(lost, **env) as hub:
        assert hub("call", "core/util.time.now").code == 0
        told = hub("backup", backup, "-o", "json", **env)
        assert (told.code, told.json["left_out"]["audit.db"]) == (0, "in PostgreSQL: pg_dump"), told
    shutil.move(hub.data_dir / "backup.pub", tmp_path / "hub.pub")
    shutil.rmtree(hub.data_dir)
    new.home.mkdir()
    assert new("restore", backup, "--trust", str(tmp_path / "hub.pub"), **env).code == 0
    with serving(new.home, **env) as hub:
        assert hub("audit", "verify").code == 0
        loaded = hub("audit", "query", "--type", "CONFIG_LOADED").out
        restored = [line for line in loaded.splitlines() if "restored_from=" in line]
        assert [told.json["signed_by"] in line for line in restored] == [True]


def _resigned(backups: BackupsTaken, backup: Path) -> Path:
    """With the genuine signature of an earlier moment."""
    copy = backup.with_name("resigned")
    shutil.copytree(backup, copy, symlinks=True)
    with tarfile.open(backups.place / "first.tar.gz") as archive:
        _extracted(archive, "manifest.sig", copy)
    return copy


def _extracted(archive: tarfile.TarFile, name: str, place: Path) -> Path:
    guard_extraction(archive).extract(name, place)
    return place / name


def _edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(backup: Path) -> None:
        manifest = json.loads((backup / "manifest.json").read_text())
        change(manifest)
        (backup / "manifest.json").write_text(json.dumps(manifest))

    return edit


def _forged_event(backup: Path) -> None:
    """An event changed, and the manifest made to fit."""
    import hashlib

    with closing(sqlite3.connect(backup / "audit.db", isolation_level=None)) as audit:
        audit.execute("UPDATE events SET principal = 'nobody' WHERE row = 7")
    data = (backup / "audit.db").read_bytes()
    digest = hashlib.sha256(data).hexdigest()

    def fit(manifest: dict[str, Any]) -> None:
        for entry in manifest["entries"]:
            if entry["name"] == "audit.db":
                entry.update(sha256=digest, size_bytes=len(data))

    _edited(fit)(backup)


def _linked(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["entries"].append({"name": name, "link": "/etc"})


def _with_more(backup: Path) -> None:
    (backup / "secrets").mkdir()
    (backup / "secrets/more").write_text("x")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte": (lambda backup: (backup / "policy.yaml").write_text("extends: all\n"), "policy.yaml is not what"),
    "a file is gone": (lambda backup: (backup / "hub.db").unlink(), "hub.db is missing"),
    "a file is added": (_with_more, "is not in the manifest"),
    "a link": (lambda backup: (backup / "workspaces/to").symlink_to("/etc"), "is no file"),
    "no manifest": (lambda backup: (backup / "manifest.json").unlink(), "has no manifest.json"),
    "a manifest that is none": (lambda backup: (backup / "manifest.json").write_text("[]"), "cannot be read"),
    "a later format": (_edited(lambda manifest: manifest.update(format=3)), "install that version"),
    "a later version": (_edited(lambda manifest: manifest.update(version="9.0")), "install that version"),
    "a link for a file": (_edited(_linked("audit.key")), "link where none can be"),
    "a link that climbs": (_edited(_linked("workspaces/../../to")), "no name of a part"),
    "an event": (_forged_event, "does not verify"),
}
