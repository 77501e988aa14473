"""Every file of the data folder is part of a backup or excluded on purpose: a new one has to be decided here."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from toolhub_service.app.backup.parts import PARTS
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.cli.root import toolhub
from toolhub_service.settings.document import Settings

NO_PARTS = {"data_dir", "backup_key", "backup_public_key"}


def test_every_path_of_the_hub_is_a_part_of_a_backup(tmp_path: Path) -> None:
    paths = Paths(Settings(data_dir=str(tmp_path)))
    properties = [name for name, each in vars(Paths).items() if isinstance(each, property)]
    kept = {name: path for name in properties if isinstance(path := getattr(paths, name), Path)}
    parts = {part.path(paths).absolute() for part in PARTS}
    assert {name for name, path in kept.items() if path.absolute() not in parts} == NO_PARTS


def test_a_foreign_manifest_is_refused_and_moves_no_cursor(tmp_path: Path) -> None:
    policy, version = {"policy.yaml": b"extends: none\n"}, "0.0.1"

    def message(name: str, files: dict[str, bytes], links: list[tuple[str, str]], **more: Any) -> tuple[int, str]:
        backup = tmp_path / name
        entries: list[dict[str, Any]] = [{"name": each, "link": link} for each, link in links]
        for each, data in files.items():
            (backup / each).parent.mkdir(parents=True, exist_ok=True)
            (backup / each).write_bytes(data)
            entries.append({"name": each, "size_bytes": len(data), "sha256": sha256(data).hexdigest()})
        facts = {
            "format": 1,
            "version": version,
            "made_at_unix_ms": 0,
            "layouts": {},
            "parts": [*files],
            "left_out": {},
        }
        facts |= {"events": 0, "artifacts": 0, "entries": entries, **more}
        (backup / "manifest.json").write_text(json.dumps(facts))
        command = ["backup", "--verify", str(backup), "--data-dir", str(tmp_path), "--allow-unsigned"]
        ran = CliRunner().invoke(toolhub, command, color=True)
        assert isinstance(ran.exception, SystemExit | None), repr(ran.exception)
        assert "\x1b]" not in ran.output
        return ran.exit_code, ran.output

    refused = [
        message("twice", policy, [("workspaces/a", "/etc"), ("workspaces/a", "/tmp")]),
        message("over", {**policy, "workspaces/a/b": b"x"}, [("workspaces/a", "/etc")]),
        message("foreign", {"artifacts/aa/bb": b"not what its name says"}, []),
        message("unlisted", {"hub.db": b"no database"}, []),
        message("later", policy, [], version="9" * 5_000),
        message("written", policy, [], version="99\x1b]0;owned\x07"),
    ]
    assert [code for code, _ in refused] == [1] * len(refused), refused
    shown = message("shown", policy, [], left_out={"x\x1b]0;owned\x07": "y"}, version="0.0.1\x1b]0;owned\x07")
    assert shown[0] == 0, shown


@pytest.mark.promise("backup.bounded")
def test_an_unsigned_backup_is_refused_before_it_unpacks_to_more_than_its_size(tmp_path: Path) -> None:
    """Each of these is some kilobytes, or would be read for ever."""

    def header(name: str, size_bytes: int, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: Any) -> bytes:
        member = tarfile.TarInfo(name)
        member.size, member.type = size_bytes, kind
        for field, value in fields.items():
            setattr(member, field, value)
        return member.tobuf(tarfile.PAX_FORMAT) + content.ljust(-len(content) % 512 + len(content), b"\0")

    small = header("artifacts/aa/bb", 1, content=b"x")
    links: dict[str, Any] = {"linkname": "/etc/passwd"}
    bombs = {
        "a file of zeros": (header("hub.db", 8 << 30) + bytes(65_536), "more than fits its size"),
        "a manifest without end": (header("manifest.json", 1 << 40), "manifest.json is too large"),
        "a header without end": (header("x", 1 << 32, tarfile.XHDTYPE), "header of 4294967296 bytes"),
        "headers of headers": (header("x", 0, tarfile.XHDTYPE) * 5_000, "no backup"),
        "a sparse file": (header("hub.db", 0, tarfile.GNUTYPE_SPARSE), "no file"),
        "one that says so elsewhere": (
            header("hub.db", 0, pax_headers={"GNU.sparse.major": "0", "GNU.sparse.size": "99999999999"}),
            "no file",
        ),
        "a symbolic link": (header("workspaces/a", 0, tarfile.SYMTYPE, **links), "no file"),
        "a hard link": (header("policy.yaml", 0, tarfile.LNKTYPE, **links), "no file"),
        "a device": (header("policy.yaml", 0, tarfile.CHRTYPE, devmajor=1, devminor=5), "no file"),
        "a pipe": (header("policy.yaml", 0, tarfile.FIFOTYPE), "no file"),
        "a way up": (header("artifacts/../../policy.yaml", 0), "no name of a part"),
        "a way down": (header("workspaces/" + "a/" * 20_000 + "b", 0), "no name of a part"),
        "the root": (header("/etc/policy.yaml", 0), "no name of a part"),
        "the same twice": (small * 2, "File exists"),
        "something else": (b"MZ" * 700, "no backup"),
    }
    for name, (data, reason) in bombs.items():
        bomb = tmp_path / "bomb.tar.gz"
        with gzip.open(bomb, "wb", compresslevel=1) as file:
            file.write(data)
        command = ["restore", str(bomb), "--allow-unsigned", "--data-dir", str(tmp_path / "data")]
        ran = CliRunner().invoke(toolhub, command)
        assert isinstance(ran.exception, SystemExit | None), (name, repr(ran.exception))
        assert (ran.exit_code, reason in ran.output) == (1, True), (name, ran.output)
        assert not any((tmp_path / "data").iterdir()), name
        result = CliRunner().invoke(toolhub, ["restore", str(bomb), "--data-dir", str(tmp_path / "data")])
        assert result.exit_code == 1, name


@pytest.mark.promise("backup.bounded")
def test_only_the_manifest_is_read_before_the_signature_is_trusted(tmp_path: Path) -> None:
    """A backup of a stranger, whose rest is never looked at."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("manifest.json", "manifest.sig"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"{}"))
    backup = tmp_path / "stranger.tar"
    backup.write_bytes(packed.getvalue()[: 4 * 512] + b"not a tar any more" * 512)
    ran = CliRunner().invoke(toolhub, ["backup", "--verify", str(backup), "--data-dir", str(tmp_path)])
    assert (ran.exit_code, "changed after it was signed" in ran.output) == (1, True), ran.output
