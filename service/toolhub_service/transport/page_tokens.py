"""Opaque cursors for pages (AIP-158): base64url of JSON, refused with advice when they were tampered with."""

from __future__ import annotations

import base64
import binascii
import json

from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.reasons import Reason

_INT64 = range(-(2**63), 2**63)


def write_cursor(cursor: tuple[int, str, int]) -> str:
    """(at_unix_ms, writer, sequence) as an opaque token."""
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode().rstrip("=")


def read_cursor(token: str) -> tuple[int, str, int] | None:
    """None for an empty token. Raises HubFailure INVALID_ARGUMENT for one the hub did not make."""
    if not token:
        return None
    try:
        padded = token + "=" * (-len(token) % 4)
        at_unix_ms, writer, sequence = json.loads(base64.urlsafe_b64decode(padded))
    except (ValueError, TypeError, binascii.Error, RecursionError) as broken:
        raise forged() from broken
    if not (_is_int64(at_unix_ms) and _is_int64(sequence) and isinstance(writer, str) and writer.isascii()):
        raise forged()
    return at_unix_ms, writer, sequence


def write_pin_cursor(cursor: tuple[int, str, str, str]) -> str:
    """(seen_at_unix_ms, source, tool, digest) as an opaque token."""
    seen_at_unix_ms, *key = cursor
    return write_cursor((seen_at_unix_ms, " ".join(key), 0))


def read_pin_cursor(token: str) -> tuple[int, str, str, str] | None:
    """As `read_cursor`."""
    cursor = read_cursor(token)
    if cursor is None:
        return None
    key = cursor[1].split(" ")
    if len(key) != 3:
        raise forged()
    source, tool, digest = key
    return cursor[0], source, tool, digest


def _is_int64(value: object) -> bool:
    """What SQLite can compare with; anything larger is an OverflowError there."""
    return type(value) is int and value in _INT64


def forged() -> HubFailure:
    """What is raised for a token that the hub did not make."""
    return HubFailure(Reason.PAGE_TOKEN_INVALID, "The token is not one of ours; start at the first page.")
