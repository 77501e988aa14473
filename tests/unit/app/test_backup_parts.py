"""Nothing that the hub keeps is forgotten by a backup: whoever adds a file to the data folder decides here."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from toolhub_service.app.backup.parts import PARTS
from toolhub_service.app.paths import Paths
from toolhub_service.cli.root import toolhub
from toolhub_service.settings.document import Settings

NO_PARTS = {"data_dir"}


def test_every_path_of_the_hub_is_a_part_of_a_backup(tmp_path: Path) -> None:
    paths = Paths(Settings(data_dir=str(tmp_path)))
    properties = [name for name, each in vars(Paths).items() if isinstance(each, property)]
    kept = {name: path for name in properties if isinstance(path := getattr(paths, name), Path)}
    parts = {part.path(paths).absolute() for part in PARTS}
    assert {name for name, path in kept.items() if path.absolute() not in parts} == NO_PARTS


def test_a_manifest_that_somebody_else_has_written_is_refused_in_words_and_moves_no_cursor(tmp_path: Path) -> None:
    policy, version = {"policy.yaml": b"extends: none\n"}, "0.0.1"

    def said(name: str, files: dict[str, bytes], links: list[tuple[str, str]], **more: Any) -> tuple[int, str]:
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
        ran = CliRunner().invoke(toolhub, ["backup", "--verify", str(backup), "--data-dir", str(tmp_path)], color=True)
        assert isinstance(ran.exception, SystemExit | None), repr(ran.exception)
        assert "\x1b]" not in ran.output
        return ran.exit_code, ran.output

    refused = [
        said("twice", policy, [("workspaces/a", "/etc"), ("workspaces/a", "/tmp")]),
        said("over", {**policy, "workspaces/a/b": b"x"}, [("workspaces/a", "/etc")]),
        said("foreign", {"artifacts/aa/bb": b"not what its name says"}, []),
        said("unlisted", {"hub.db": b"no database"}, []),
        said("later", policy, [], version="9" * 5_000),
        said("written", policy, [], version="99\x1b]0;owned\x07"),
    ]
    assert [code for code, _ in refused] == [1] * len(refused), refused
    shown = said("shown", policy, [], left_out={"x\x1b]0;owned\x07": "y"}, version="0.0.1\x1b]0;owned\x07")
    assert shown[0] == 0, shown
