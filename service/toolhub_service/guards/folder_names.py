"""A folder name for every id: ids that differ never share a folder, whatever characters they are made of."""

from __future__ import annotations

import hashlib

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_SPELLED = [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in range(256)]
_EMPTY = "%"
_LONG = "%~"
"""Neither is written by escaping, so no id can take the name of another one."""
_FOLDER_BYTES = 200
_KEPT_BYTES = 100


def workspace_folder_name(id: str) -> str:
    """A folder name for a principal or request id of any characters: ids that differ get names that differ.

    Percent-encoded, without a leading `.` or `-`, so that people can read it back. Ids whose name would pass 200 bytes
    keep their beginning and end in the id's sha256: still unlike any other, but not to be read back.
    """
    raw = id.encode("utf-8", "surrogatepass")
    name = "".join(_SPELLED[byte] for byte in raw)
    if not name:
        return _EMPTY
    if name[0] in ".-":
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > _FOLDER_BYTES:
        return f"{name[:_KEPT_BYTES]}{_LONG}{hashlib.sha256(raw).hexdigest()}"
    return name
