"""What adapters of remote servers share: TLS of a client, Retry-After, and connections closed after their last user."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final


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


LONGEST_S: Final = 3_600.0
"""The longest wait that one Retry-After header can ask for."""


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


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """Paths of PEM files; empty: the system's CAs, no certificate shown."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


NO_TLS_FILES: Final = TlsTerms()


def client_context(terms: TlsTerms) -> ssl.SSLContext:
    """TLS 1.2 or later, servers verified. Raises OSError and ValueError where a file cannot be read or used."""
    context = ssl.create_default_context(cafile=terms.ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if terms.certificate_file:
        context.load_cert_chain(terms.certificate_file, terms.key_file or None)
    return context
