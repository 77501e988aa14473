"""Nothing that the hub keeps is forgotten by a backup: whoever adds a file to the data folder decides here."""

from __future__ import annotations

from pathlib import Path

from toolhub_service.app.backup.parts import PARTS
from toolhub_service.app.paths import Paths
from toolhub_service.settings.document import Settings

NO_PARTS = {"data_dir"}


def test_every_path_of_the_hub_is_a_part_of_a_backup(tmp_path: Path) -> None:
    paths = Paths(Settings(data_dir=str(tmp_path)))
    properties = [name for name, each in vars(Paths).items() if isinstance(each, property)]
    kept = {name: path for name in properties if isinstance(path := getattr(paths, name), Path)}
    parts = {part.path(paths).absolute() for part in PARTS}
    assert {name for name, path in kept.items() if path.absolute() not in parts} == NO_PARTS
