"""What adapters of remote servers share: connections, Retry-After, TLS of a client, and their words cut to a size.

What is cut keeps a digest of the whole, so that a change is still seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Final

from toolhub_service.adapters.source_config import ClientTls
from toolhub_service.domain.json import JsonValue

_TOO_DEEP: Final = "nested too deeply to be read"
LONGEST_S: Final = 3_600.0
"""The longest wait that one Retry-After header can ask for."""


class RefCounted:
    """Connections that are closed after their last user, so that calls under way end where they began even when their
    source is removed or opened again meanwhile. `close` ends the connections; it is called once.
    """

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._users = 0
        self.is_closed = False
        """Whether nobody may begin to use them any more."""

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.is_closed and not self._users:
                await self._close()

    async def close(self) -> None:
        """Now, or when the last user is out."""
        if self.is_closed:
            return
        self.is_closed = True
        if not self._users:
            await self._close()


def is_cancelled() -> bool:
    """Whether somebody has cancelled this task, and not a library or a tool on its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def retry_after_s(header: str | None) -> float:
    """Seconds that a Retry-After header (RFC 9110 §10.2.3) asks for, in either form; 0 when it cannot be read."""
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
    """TLS 1.2 or later, servers verified. Raises OSError and ValueError where a file cannot be read or used."""
    context = ssl.create_default_context(cafile=terms.ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if terms.certificate_file:
        context.load_cert_chain(terms.certificate_file, terms.key_file or None)
    return context


def written(value: JsonValue) -> bytes | None:
    """Compact JSON of a value that came as JSON; None when it is nested too deeply to be written."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
    except (RecursionError, ValueError):
        return None


def shortened(text: str, max_bytes: int) -> str:
    """The beginning of the text, at most so many bytes of UTF-8; what is not Unicode is replaced."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def kept_text(text: str, max_bytes: int) -> JsonValue:
    """The text; of one that is too long the beginning, its length and its digest."""
    short = shortened(text, max_bytes)
    if len(short) == len(text):
        return text
    data = text.encode("utf-8", "replace")
    return {"beginning": short, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def kept_json(value: JsonValue, max_bytes: int) -> JsonValue:
    """The value; of one that is too large only its length and digest."""
    if isinstance(value, str):
        return kept_text(value, max_bytes)
    data = written(value)
    if data is None:
        return {"unreadable": _TOO_DEEP}
    if len(data) <= max_bytes:
        return value
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def one_line(text: str, max_chars: int) -> str:
    """Untrusted text for a sentence: printable, on one line, cut."""
    seen = text[: 4 * max_chars]
    line = " ".join("".join(char if char.isprintable() else " " for char in seen).split())
    return line if len(line) <= max_chars and len(seen) == len(text) else f"{line[: max_chars - 1]}…"


def as_object(value: JsonValue) -> Mapping[str, JsonValue] | None:
    """The value when it is a JSON object."""
    return value if isinstance(value, Mapping) else None
