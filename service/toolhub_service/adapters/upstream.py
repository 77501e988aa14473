"""What adapters share: connections, TLS, Retry-After, size limits for foreign texts and bytes, and common failures.

Truncated values carry a digest of the whole, so that changes stay visible.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Final

from toolhub_service.domain.artifact import OCTETS, ArtifactRef, ArtifactService
from toolhub_service.domain.call import Call, GrantedCall, Suspended
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.excerpts import both_ends
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.egress.hiding import mask_bytes
from toolhub_service.guards.secrets import Redact
from toolhub_service.sections.source_config import ClientTls

_TOO_DEEP: Final = "nested too deeply to be read"
LONGEST_S: Final = 3_600.0  # the longest wait that one Retry-After header can request
EXCERPT_MAX_CHARS: Final = 2_000
CHECKED_CHARS: Final = 8_000  # what the redactor sees: more than is shown, so that no secret is cut in half
_CHUNK_BYTES: Final = 256 * 1024
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(; ?[\x20-\x7e]{1,100})?")


TraceMeta = Callable[[], dict[str, str]]  # returns the current W3C traceparent and tracestate; empty without any


class RefCounted:
    """Connections that are closed after their last user, so that running calls can finish even when their source is
    removed or reopened meanwhile. `close` ends the connections and is called once."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._users = 0
        self.is_closed = False  # whether new users are refused

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.is_closed and not self._users:
                await self._close()

    async def close(self) -> None:
        """Close now, or when the last user has finished."""
        if self.is_closed:
            return
        self.is_closed = True
        if not self._users:
            await self._close()


def is_cancelled() -> bool:
    """Return whether this task was cancelled from outside, not by a library or tool that raises CancelledError
    itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def suspension_in(error: BaseException) -> Suspended | None:
    """Return the Suspended of one of the concurrent calls of a tool in a task group; None when there is none."""
    while isinstance(error, BaseExceptionGroup) and (part := error.subgroup(Suspended)) is not None:
        error = part.exceptions[0]
    return error if isinstance(error, Suspended) else None


def retry_after_s(header: str | None) -> float:
    """Return the seconds in a Retry-After header (RFC 9110 §10.2.3), in either form; 0 when it cannot be parsed."""
    if not header:
        return 0.0
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_S)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), LONGEST_S)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def client_context(terms: ClientTls) -> ssl.SSLContext:
    """Return a client context with TLS 1.2 or later that verifies servers. Raises OSError and ValueError where a file
    cannot be read or used."""
    context = ssl.create_default_context(cafile=terms.ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if terms.certificate_file:
        context.load_cert_chain(terms.certificate_file, terms.key_file or None)
    return context


def write_json(value: JsonValue) -> bytes | None:
    """Return a parsed JSON value as compact JSON; None when it is nested too deeply to be serialized."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
    except (RecursionError, ValueError):
        return None


def shorten(text: str, max_bytes: int) -> str:
    """Return the beginning of the text, at most so many bytes of UTF-8; invalid Unicode is replaced."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def keep_text(text: str, max_bytes: int) -> JsonValue:
    """Return the text; if it is too long, its beginning, length and digest."""
    short = shorten(text, max_bytes)
    if len(short) == len(text):
        return text
    data = text.encode("utf-8", "replace")
    return {"beginning": short, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def keep_json(value: JsonValue, max_bytes: int) -> JsonValue:
    """Return the value; if it is too large, only its length and digest."""
    if isinstance(value, str):
        return keep_text(value, max_bytes)
    data = write_json(value)
    if data is None:
        return {"unreadable": _TOO_DEEP}
    if len(data) <= max_bytes:
        return value
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def one_line(text: str, max_chars: int) -> str:
    """Return untrusted text for use in a sentence: printable, on one line, truncated."""
    seen = text[: 4 * max_chars]
    line = " ".join("".join(char if char.isprintable() else " " for char in seen).split())
    return line if len(line) <= max_chars and len(seen) == len(text) else f"{line[: max_chars - 1]}…"


def as_object(value: JsonValue) -> Mapping[str, JsonValue] | None:
    """Return the value if it is a JSON object, else None."""
    return value if isinstance(value, Mapping) else None


def as_string(value: object) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_number(value: object) -> float | None:
    """Return the value if it is a JSON number, else None; integers stay integers, as they may have more digits than a
    double."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def quote_foreign(text: str, redact: Redact, max_chars: int = EXCERPT_MAX_CHARS) -> str:
    """Return foreign text for handing on: redacted, without control characters; of a long one both ends."""
    left_out = max(0, len(text) - 2 * CHECKED_CHARS)
    # Each end is redacted by itself; where the text was cut, nothing is shown.
    parts = (text[:CHECKED_CHARS], text[-CHECKED_CHARS:]) if left_out else (text,)
    clean = "".join(map(redact, parts))
    shown = "".join(char if char.isprintable() or char in "\n\t" else " " for char in clean).strip()
    return both_ends(shown, max_chars, left_out=left_out)


_PATH: Final = re.compile(r"""(?:[A-Za-z]:\\|\\\\|(?<![\w:/])/)[^\s'",:;()<>|]{2,}""")


def without_paths(text: str) -> str:
    """Return foreign text without absolute paths of its machine."""
    return _PATH.sub("<path>", text)


def quote_answer(excerpt: str) -> str:
    """Return a sentence with the excerpt of the upstream's answer."""
    return f"It says: {excerpt}" if excerpt else "It gave no reason."


async def keep_bytes(
    data: bytes, call: Call, artifacts: ArtifactService | None, *, media_type: str = "", name: str = ""
) -> tuple[JsonObject, tuple[ArtifactRef, ...]]:
    """Return bytes as a value: the artifact that stores them, or why they are not stored.

    A call that had its effect is answered even when its output cannot be stored, so that failure is not raised.
    `media_type`: as the upstream names it; ignored when invalid. `artifacts`: None where nothing can be stored.
    """
    data = mask_bytes(data)
    facts: JsonObject = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if artifacts is None:
        return {**facts, "dropped": "this hub stores no artifacts"}, ()
    believed = media_type if _MEDIA_TYPE.fullmatch(media_type) else OCTETS
    try:
        artifact = await artifacts.keep(_chunks(data), call=call, media_type=believed, name=name)
    except ToolFailure as failure:
        return {**facts, "dropped": f"it could not be stored: {failure.error.kind.value}"}, ()
    return {**facts, "artifact": artifact.artifact_id}, (artifact.ref,)


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def no_source(call: GrantedCall) -> ToolFailure:
    """The source was removed during the call."""
    message = f"{call.spec.name} is not available: its source is no longer connected to this hub. Use another tool."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message)


def not_loaded(tool: str) -> ToolFailure:
    """The code of an in-process tool is not loaded."""
    message = f"{tool} is listed but not loaded. Use another tool, or ask an operator."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False)


def tool_failed(tool: str) -> ToolFailure:
    """An in-process tool raised an unexpected exception, none of which is shown."""
    message = (
        f"{tool} failed with an unexpected error. Try other arguments or another tool. Operators find the error in "
        "the log."
    )
    return refuse(ErrorKind.INTERNAL, message)


def hub_failed(call: GrantedCall) -> ToolFailure:
    """A defect of the hub during a call of a remote tool."""
    message = (
        f"The hub failed while it called {call.spec.name}, which may have run. Check that before you call it "
        "again. Operators find the error in the log."
    )
    return refuse(ErrorKind.INTERNAL, message)
