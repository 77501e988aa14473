"""The lexical check of a workspace path.

The check is pure: it reads no disk, so policy decides with it (step 4) and the workspace enforces it again before every
I/O. It is not the boundary: links and races are prevented at I/O time, where a path is opened beneath the workspace's
descriptor. Nothing is decoded here: `%2e%2e` is a name like any other.

Limits: path_resolution(7), `NAME_MAX` and `PATH_MAX`. Refused invisible characters: Unicode categories Cc and Zl/Zp and
the bidirectional controls that make one path look like another (CVE-2021-42574).
"""

from __future__ import annotations

import hashlib
import re

from toolhub_service.domain.errors.failure import ErrorKind, refuse

# A folder name for every id: different ids never share a folder, whatever characters they consist of.

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_SPELLED = [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in range(256)]
_EMPTY = "%"
# Escaping never produces either name, so no id can take the name of another one.
LONG_NAME = "%~"
"""Stands in the folder name of an id that is too long to be read from it."""
_FOLDER_BYTES = 200
_KEPT_BYTES = 100


def workspace_folder_name(id: str) -> str:
    """Return a folder name for a principal or request id of any characters: different ids get different names.

    Percent-encoded, without a leading `.` or `-`, so that people can read it. Ids whose name would exceed 200 bytes
    keep their beginning and end in the id's sha256: still unique, but not readable.
    """
    raw = id.encode("utf-8", "surrogatepass")
    name = "".join(_SPELLED[byte] for byte in raw)
    if not name:
        return _EMPTY
    if name[0] in ".-":
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > _FOLDER_BYTES:
        return f"{name[:_KEPT_BYTES]}{LONG_NAME}{hashlib.sha256(raw).hexdigest()}"
    return name


PATH_BYTES = 4095
"""`PATH_MAX` counts the closing NUL."""
NAME_BYTES = 255
DEPTH = 255
"""Most components of one path."""

_EXAMPLE = 'Use a path relative to the workspace, such as "notes/today.md"'
# Without the joiners U+200C and U+200D, which some languages and emoji need.
_INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:[/\\]")


def check_path(path: str) -> str:
    """Return the path in normal form: relative, without `.`, `..` and doubled slashes; `.` is the workspace itself.

    Raises ToolFailure PATH_OUTSIDE_SANDBOX for an absolute path or one that leaves the workspace, INVALID_INPUT for one
    that cannot name a file: empty, too long, a URL, with control or invisible characters, lone surrogates or
    backslashes.
    """
    if not path:
        raise refuse(ErrorKind.INVALID_INPUT, f'The path is empty. {_EXAMPLE}, or "." for the workspace itself.')
    if _bytes_exceed(path, PATH_BYTES):
        raise refuse(ErrorKind.INVALID_INPUT, "The path is too long. Use a shorter one.", max_bytes=PATH_BYTES)
    if _INVISIBLE.search(path):
        message = "The path holds control or invisible characters or broken Unicode. Use printable characters only."
        raise refuse(ErrorKind.INVALID_INPUT, message)
    if _ABSOLUTE.match(path):
        raise refuse(
            ErrorKind.PATH_OUTSIDE_SANDBOX, f"Absolute paths are not allowed. {_EXAMPLE}, without a leading /."
        )
    if _URL.match(path):
        raise refuse(
            ErrorKind.INVALID_INPUT, f"The path is a URL. {_EXAMPLE}, without `{path.partition('/')[0][:40]}`."
        )
    if "\\" in path:
        raise refuse(ErrorKind.INVALID_INPUT, f"The path holds a backslash. {_EXAMPLE}, with / between folders.")
    return "/".join(_components(path)) or "."


def _components(path: str) -> list[str]:
    kept: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not kept:
                message = f"The path leaves the workspace through `..`. {_EXAMPLE}."
                raise refuse(ErrorKind.PATH_OUTSIDE_SANDBOX, message)
            kept.pop()
        elif name and name != ".":
            if _bytes_exceed(name, NAME_BYTES):
                message = "A name in the path is too long. Use shorter file and folder names."
                raise refuse(ErrorKind.INVALID_INPUT, message, max_bytes=NAME_BYTES)
            kept.append(name)
    if len(kept) > DEPTH:
        raise refuse(ErrorKind.INVALID_INPUT, "The path has too many folders. Use a flatter one.", max_depth=DEPTH)
    return kept


def _bytes_exceed(text: str, limit_bytes: int) -> bool:
    """Return whether the UTF-8 form is longer; a character has at most four bytes, so most texts need no encoding."""
    length = len(text)
    return length > limit_bytes or (length * 4 > limit_bytes and len(text.encode("utf-8", "replace")) > limit_bytes)
