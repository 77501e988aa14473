"""Pages of lists (AIP-158): their size, and opaque cursors; an invalid cursor is refused with advice."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.runtime.page_seal import PageSeal
from toolhub_service.transport.rpc import ServicerContext, current_principal

_PAGE_DEFAULT = 100
PAGE_MAX = 1_000
_INT64 = range(-(2**63), 2**63)

Cursor = tuple[int, str, int]
"""(at_unix_ms, writer, sequence)."""
T = TypeVar("T")
M = TypeVar("M")

PAGE_MAX_BYTES: Final = 2 * 1024 * 1024
"""Size after which a page ends, so that it fits the 4 MiB that a gRPC client accepts by default."""


class BytePage(Generic[T, M]):
    """Called with the items of a page, returns how many fit its limit in bytes, at least one; `rendered` has their
    messages."""

    def __init__(self, render: Callable[[T], M], size_of: Callable[[M], int]) -> None:
        self._render = render
        self._size_of = size_of
        self.rendered: list[M] = []

    def __call__(self, items: Sequence[T]) -> int:
        size_bytes = 0
        for item in items:
            rendered = self._render(item)
            size_bytes += self._size_of(rendered)
            if self.rendered and size_bytes > PAGE_MAX_BYTES:
                break
            self.rendered.append(rendered)
        return len(self.rendered)


def page_limit(page_size: int, most: int = PAGE_MAX) -> int:
    """Return the number of items of a page."""
    return min(page_size or _PAGE_DEFAULT, most)


def page_of(found: Sequence[T], limit: int, cursor_of: Callable[[T], Cursor]) -> tuple[Sequence[T], str]:
    """Return the page and the token of the next one, empty at the end; `found` has one item more than the page where
    there are more."""
    page = found[:limit]
    return page, write_cursor(cursor_of(page[-1])) if len(found) > limit else ""


def write_cursor(cursor: Cursor) -> str:
    """Return the cursor as an opaque token: base64url of JSON."""
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode().rstrip("=")


def read_cursor(token: str) -> Cursor | None:
    """Return the cursor; None for an empty token. Raises HubFailure INVALID_ARGUMENT for a token that the hub did not
    make."""
    if not token:
        return None
    try:
        padded = token + "=" * (-len(token) % 4)
        at_unix_ms, writer, sequence = json.loads(base64.urlsafe_b64decode(padded))
    except (ValueError, TypeError, binascii.Error, RecursionError) as broken:
        raise _forged_token() from broken
    # Largest value that SQLite can compare with: a larger one is an OverflowError there.
    are_int64 = all(type(number) is int and number in _INT64 for number in (at_unix_ms, sequence))
    if not (are_int64 and isinstance(writer, str) and writer.isascii()):
        raise _forged_token()
    return at_unix_ms, writer, sequence


def write_pin_cursor(cursor: tuple[int, str, str, str]) -> str:
    """Return (seen_at_unix_ms, source, tool, digest) as an opaque token."""
    seen_at_unix_ms, *key = cursor
    return write_cursor((seen_at_unix_ms, " ".join(key), 0))


def read_pin_cursor(token: str) -> tuple[int, str, str, str] | None:
    """As `read_cursor`."""
    cursor = read_cursor(token)
    if cursor is None:
        return None
    key = cursor[1].split(" ")
    if len(key) != 3:
        raise _forged_token()
    source, tool, digest = key
    return cursor[0], source, tool, digest


def _forged_token() -> HubFailure:
    return HubFailure(Reason.PAGE_TOKEN_INVALID, "The token was not issued by this hub. Start from the first page.")


# Every token that leaves is sealed for its caller and its request, whatever list it belongs to.


def question_of(path: str, request: Message) -> str:
    """Return what a token is bound to besides its caller: the RPC, and the request apart from the page."""
    asked = type(request)()
    asked.CopyFrom(request)
    for field in ("page_token", "page_size"):
        if field in asked.DESCRIPTOR.fields_by_name:
            asked.ClearField(field)
    for given, value in asked.ListFields():
        # An empty filter is the same as none.
        if isinstance(value, Message) and not value.ByteSize():
            asked.ClearField(given.name)
    return f"{path} {hashlib.sha256(asked.SerializeToString(deterministic=True)).hexdigest()}"


def with_sealed_pages(behaviour: Callable[..., Any], path: str, pages: PageSeal) -> Callable[..., Any]:
    """Return the handler of an RPC with pages, which neither gets nor returns a token that is not its caller's."""

    async def around(request: Any, context: ServicerContext) -> Any:
        principal_id = current_principal().id
        question = question_of(path, request)
        request.page_token = open_token(pages, request.page_token, principal_id, question)
        response = await behaviour(request, context)
        response.next_page_token = pages.seal(response.next_page_token, principal_id, question)
        return response

    return around


def open_token(pages: PageSeal, token: str, principal_id: str, *questions: str) -> str:
    """Return the place of a token that was sealed for one of these questions. Raises HubFailure INVALID_ARGUMENT."""
    places = (pages.open(token, principal_id, question) for question in questions)
    place = next((found for found in places if found is not None), None)
    if place is None:
        message = (
            "The token was not given to you for this request: it belongs to another list, filter or caller, or was "
            "changed. Start from the first page."
        )
        raise HubFailure(Reason.PAGE_TOKEN_INVALID, message)
    return place
