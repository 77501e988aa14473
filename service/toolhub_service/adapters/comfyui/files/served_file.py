"""Files as a server names them, validated before they are requested: no foreign name ever becomes a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.guards.foreign_text import is_hidden

NAME_MAX_CHARS: Final = 255
_FOLDER_MAX_CHARS: Final = 1_024


@dataclass(frozen=True, slots=True)
class ServedFile:
    """One file of an output."""

    filename: str
    """File name without folders."""
    subfolder: str
    type: str

    @property
    def params(self) -> dict[str, str]:
        """Return the parameters of GET /view."""
        return {"filename": self.filename, "subfolder": self.subfolder, "type": self.type}


def served_file(value: Any) -> ServedFile | None:
    """Return the file; None when the value is none, or has a name that no honest server gives."""
    if not isinstance(value, Mapping):
        return None
    filename, subfolder, kind = value.get("filename"), value.get("subfolder", ""), value.get("type", "output")
    if not isinstance(filename, str) or not isinstance(subfolder, str) or not isinstance(kind, str):
        return None
    if not is_file_name(filename) or not is_folder(subfolder) or kind not in ("output", "temp", "input"):
        return None
    return ServedFile(filename, subfolder, kind)


def is_file_name(name: str) -> bool:
    return 0 < len(name) <= NAME_MAX_CHARS and _is_plain(name) and "/" not in name and "\\" not in name


def is_folder(name: str) -> bool:
    """Return whether it is a relative path without `..`; servers on Windows write backslashes. Empty: the top."""
    if not name:
        return True
    return len(name) <= _FOLDER_MAX_CHARS and all(map(_is_plain, name.replace("\\", "/").split("/")))


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and ":" not in name and not any(map(is_hidden, name)) and "\n" not in name
