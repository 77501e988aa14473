"""What the core/fs.* tools share: their arguments, text encodings, and the effects that plans show."""

from __future__ import annotations

import errno
import posixpath
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.tool import READ_FS, Annotations, ArgumentRole, GuardedArgument
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.guards.paths import PATH_BYTES, check_path
from toolhub_service.tools.tool import Input, Output, Tool
from toolhub_service.tools.workspace.disk_errors import failure_of
from toolhub_service.tools.workspace.workspace import Workspace

FilePath = Annotated[
    str,
    Meta(description="File, relative to the workspace, such as notes/today.md.", min_length=1, max_length=PATH_BYTES),
]
FolderPath = Annotated[
    str,
    Meta(description='Folder, relative to the workspace; "." is the workspace.', min_length=1, max_length=PATH_BYTES),
]
AnyPath = Annotated[
    str, Meta(description="File or folder, relative to the workspace.", min_length=1, max_length=PATH_BYTES)
]
Overwrite = Annotated[bool, Meta(description="Replace an existing file; otherwise ALREADY_EXISTS.")]
Encoding = Annotated[str, Meta(description="Text encoding, such as utf-8 or gb18030.", min_length=1, max_length=40)]
Sha256 = Annotated[str, Meta(description="SHA-256 of the file's content, hex.")]

_EARLIEST_S = -62_135_596_800.0
_LATEST_S = 253_402_300_799.0


def iso_time(unix_s: float) -> str:
    """Return ISO 8601 in UTC to the millisecond; times beyond the years 1 to 9999 are shown as the nearest."""
    bounded_s = min(max(unix_s, _EARLIEST_S), _LATEST_S)
    return datetime.fromtimestamp(bounded_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_overwrite(overwrite: bool, sandbox: Sandbox) -> None:
    """Raises ToolFailure POLICY_DENIED where replacing files is not granted."""
    if overwrite and not sandbox.may_overwrite:
        message = "The policy does not allow replacing files. Write to a new path with overwrite false."
        raise refuse(ErrorKind.POLICY_DENIED, message)


def check_size(size_bytes: int, limit_bytes: int, what: str) -> None:
    """Raises ToolFailure FILE_TOO_LARGE."""
    if size_bytes > limit_bytes:
        message = f"{what} is {size_bytes} bytes; the limit is {limit_bytes}. Work with a smaller part."
        raise refuse(ErrorKind.FILE_TOO_LARGE, message, size_bytes=size_bytes, max_bytes=limit_bytes)


# What a change of files would do now, as plans show it; one that would fail raises the error of the change itself.


def target(workspace: Workspace, path: str, sandbox: Sandbox, *, overwrite: bool, mkdirp: bool = True) -> str:
    """Return how a plan describes a file at this path: as a new one, or as one that replaces another.

    Raises ToolFailure ALREADY_EXISTS, INVALID_INPUT for a folder, NOT_FOUND when the folder is missing and would not be
    created.
    """
    check_overwrite(overwrite, sandbox)
    relative = check_path(path)
    if not mkdirp:
        workspace.stat(posixpath.dirname(relative) or ".")
    try:
        found = workspace.stat(relative)
    except ToolFailure as failure:
        if failure.error.kind is not ErrorKind.NOT_FOUND:
            raise
        return f'the new file "{relative}"'
    if not overwrite:
        raise failure_of(FileExistsError(errno.EEXIST, ""), relative)
    if found.type == "dir":
        raise failure_of(IsADirectoryError(errno.EISDIR, ""), relative)
    return f'"{relative}", replacing the {"link" if found.type == "link" else f"{found.size_bytes:,} bytes"} there'


# Text encodings are a fixed table: Python's registry also has codecs that decompress (`zlib`), interpret escapes
# (`unicode_escape`) or are not for text.

_NAMES = (
    "utf-8 utf-8-sig utf-16 utf-16-le utf-16-be utf-32 utf-32-le utf-32-be ascii "
    "iso-8859-1 iso-8859-2 iso-8859-5 iso-8859-7 iso-8859-9 iso-8859-15 "
    "cp437 cp850 cp866 cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8-r koi8-u "
    "gbk gb2312 gb18030 big5 shift-jis cp932 euc-jp iso-2022-jp euc-kr cp949"
).split()
_WINDOWS = {f"windows-{page}": f"cp{page}" for page in range(1250, 1259)}
_ALIASES = {"utf8": "utf-8", "utf16": "utf-16", "us-ascii": "ascii", "sjis": "shift-jis"}
_LATIN_1 = {"latin-1": "iso-8859-1", "latin1": "iso-8859-1"}
_KNOWN = {name: name for name in _NAMES} | _ALIASES | _LATIN_1 | _WINDOWS


def check_encoding(name: str) -> str:
    """Return the codec's name. Raises ToolFailure INVALID_INPUT for one that is not in the table."""
    known = _KNOWN.get(name.strip().lower().replace("_", "-"))
    if known is None:
        message = "Unknown encoding. Use one of the names in details, utf-8 when in doubt."
        raise refuse(ErrorKind.INVALID_INPUT, message, encodings=list(_NAMES))
    return known


def undecodable(path: str, encoding: str, at_byte: int) -> ToolFailure:
    """Return the failure for bytes that are not text in `encoding`."""
    message = (
        f'"{path}" is not {encoding} text (byte {at_byte}). Read it with its own encoding, such as "gb18030" or '
        '"cp1252"; "latin-1" shows any bytes. A binary file cannot be read as text.'
    )
    return refuse(ErrorKind.INVALID_INPUT, message, encoding=encoding, at_byte=at_byte)


def encode_text(text: str, encoding: str) -> bytes:
    """Return the bytes of `text`. Raises ToolFailure INVALID_INPUT when the encoding cannot express it."""
    codec = check_encoding(encoding)
    try:
        return text.encode(codec)
    except UnicodeEncodeError as error:
        message = f"The text holds characters that {codec} cannot express, first at index {error.start}. Use utf-8."
        raise refuse(ErrorKind.INVALID_INPUT, message, encoding=codec, at_index=error.start) from error


class FsReadTool(Tool[Input, Output]):
    """Subclasses read what is at their argument `path` and change nothing."""

    capabilities = frozenset({READ_FS})
    annotations = Annotations(read_only=True, idempotent=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_READ),)
