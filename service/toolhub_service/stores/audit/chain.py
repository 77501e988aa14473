"""The hash chain of one writer: each event is sealed together with the seal of the one before.

The tag is HMAC-SHA256 over previous tag, writer, sequence, key id and the canonical event (orjson: fields in the order
of `Event`, attributes and labels sorted, no white space). An edit, a deletion, a swap or an insertion breaks the tag at
that very sequence, and nobody without the key can repair it. A chain alone cannot show that its tail was cut;
checkpoints do.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from msgspec.structs import asdict

from toolhub_service.domain.event import Event, EventType
from toolhub_service.stores.audit.keyring import Keyring, Mac

GENESIS: Final = "0" * 64
# Fields of later versions are left out when empty, so that an older event is serialised as it was when it was sealed.
_LATER: Final = Event.__struct_fields__[Event.__struct_fields__.index("attributes") + 1 :]


class Chain:
    """The end of one writer's chain. It only adds events, and knows of no storage."""

    __slots__ = ("_mac", "head", "key_id", "sequence", "writer")

    def __init__(self, writer: str, keyring: Keyring) -> None:
        mac = keyring.chain()
        assert mac is not None
        self._mac: Mac = mac
        self.writer = writer
        self.key_id = keyring.active_id
        self.sequence = 0
        self.head = GENESIS

    def add(self, body: bytes) -> tuple[int, str, str]:
        """Seal the next canonical event: its sequence, the tag before it, and its tag."""
        sequence, previous = self.sequence + 1, self.head
        tag = self._mac.hex(bytes_to_seal(previous, self.writer, sequence, self.key_id, body))
        self.sequence, self.head = sequence, tag
        return sequence, previous, tag


def bytes_to_seal(previous: str, writer: str, sequence: int, key_id: str, body: bytes) -> bytes:
    """Return the bytes that the tag covers.

    Only the body may hold a line feed, and it comes last: no two events share them.
    """
    return f"{previous}\n{writer}\n{sequence}\n{key_id}\n".encode("utf-8", "surrogateescape") + body


def canonical(event: Event) -> bytes:
    """Return the event's canonical JSON. Raises TypeError when UTF-8 cannot encode its text; see `encodable`."""
    body = asdict(event)
    for name in _LATER:
        if not body[name]:
            del body[name]
    if len(event.attributes) > 1:
        body["attributes"] = dict(sorted(event.attributes.items()))
    if len(event.labels) > 1:
        body["labels"] = dict(sorted(event.labels.items()))
    return orjson.dumps(body, default=dict)


def parse(body: str | bytes) -> Event:
    """Return the event of a canonical body."""
    data: dict[str, Any] = orjson.loads(body)
    return Event(**{**data, "type": EventType(data["type"])})
