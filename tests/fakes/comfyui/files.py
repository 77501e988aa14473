"""The folders of a server: real files in a temporary folder, so that tests can delete, replace and grow them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import string
from pathlib import Path
from typing import Any

from tests.fakes.comfyui.node_class import BrokenNode
from tests.fakes.comfyui.png import Picture, decoded, encoded

KINDS = ("input", "output", "temp")
SHOWN_ROOT = "/opt/comfyui"
"""Where the server says its folders are, in messages that carry paths."""
OUTSIDE = """**** ERROR: Saving image outside the output folder is not allowed.
 full_output_folder: {root}/escape
         output_dir: {root}/base/output
"""


class Folders:
    """`input`, `output` and `temp` below `root`."""

    def __init__(self, root: Path, *, shows_common_path: bool) -> None:
        self.root = root
        self._shows_common_path = shows_common_path
        self._letters = "".join(random.choices(string.ascii_lowercase, k=5))
        self.disk_is_full = False
        for kind in (*KINDS, "web"):
            (root / kind).mkdir(exist_ok=True)

    def of(self, kind: str) -> Path | None:
        """The folder of a type that a client names; None when there is none."""
        return self.root / kind if kind in KINDS else None

    def inside(self, kind: str, name: str) -> Path | None:
        """A path below that folder; None when it would leave it."""
        folder = self.root / kind
        path = Path(os.path.normpath(folder / name))
        return path if path.is_relative_to(folder) else None

    def save(self, picture: Picture, prefix: str, kind: str, texts: dict[str, Any]) -> list[dict[str, str]]:
        """One file a picture of the batch, numbered after those that are there. Raises: BrokenNode, OSError."""
        prefix = f"{prefix}_temp_{self._letters}" if kind == "temp" else prefix
        path = self.inside(kind, prefix)
        if path is None:
            common = f"         commonpath: {SHOWN_ROOT}\n" if self._shows_common_path else ""
            raise BrokenNode("Exception", OUTSIDE.format(root=SHOWN_ROOT) + common)
        if self.disk_is_full:
            raise OSError(28, "No space left on device")
        path.parent.mkdir(parents=True, exist_ok=True)
        data = encoded(picture, {key: json.dumps(value) for key, value in texts.items()})
        first = self._last_number(path) + 1
        names = [f"{path.name}_{number:05}_.png" for number in range(first, first + picture.batch)]
        for name in names:
            (path.parent / name).write_bytes(data)
        below = path.parent.relative_to(self.root / kind).as_posix()
        return [{"filename": name, "subfolder": "" if below == "." else below, "type": kind} for name in names]

    def _last_number(self, path: Path) -> int:
        pattern = re.compile(re.escape(path.name) + r"_(\d+)_")
        matches = (pattern.match(each.name) for each in path.parent.iterdir())
        return max((int(match[1]) for match in matches if match), default=0)

    def load(self, name: str) -> Picture:
        """An uploaded picture. Raises: OSError when it is not there, ValueError when it is none."""
        path = self.inside("input", name)
        if path is None:
            raise FileNotFoundError(name)
        return decoded(path.read_bytes())

    def changed(self, node: dict[str, Any]) -> str:
        """What a LoadImage adds to its signature: the digest of its file."""
        path = self.inside("input", str(node["inputs"].get("image"))) if node["class_type"] == "LoadImage" else None
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else ""

    def uploads(self) -> list[str]:
        """Names in the input folder itself, as `/object_info/LoadImage` offers them."""
        return sorted(path.name for path in (self.root / "input").iterdir() if path.is_file())

    def outputs(self) -> list[Path]:
        """Every file in the output folder."""
        return sorted(path for path in (self.root / "output").rglob("*") if path.is_file())

    def upload(self, name: str, subfolder: str, kind: str, data: bytes, *, overwrite: bool) -> str | None:
        """The name it is kept under: the same bytes once, other bytes as `name (1)`; None: outside the folder."""
        path = self.inside(kind, f"{subfolder}/{name}" if subfolder else name)
        if path is None:
            return None
        stem, suffix = path.stem, path.suffix
        count = 0
        while not overwrite and path.exists() and path.read_bytes() != data:
            count += 1
            path = path.with_name(f"{stem} ({count}){suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path.name if count else name

    def clear_temp(self) -> None:
        """As at every start."""
        for path in (self.root / "temp").iterdir():
            path.unlink()
