"""How many fields a message has, counted in its bytes: the parser makes them all in one step, on the event loop.

A Struct of 4 MiB can hold two million values; parsing it, and walking what it became, held every call up for seconds.
JSON as bytes is one field, however long it is, and is bounded by its own structure (schema/structure.py).
Wire format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

MAX_FIELDS: Final = 60_000
"""About 15,000 members of a Struct."""
_PARSED_AT_ONCE_BYTES: Final = 64 * 1024
_FIXED_BYTES: Final = {1: 8, 5: 4}


def bounded(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """The deserializer of a message, raising DecodeError for a large one that has more than MAX_FIELDS."""
    descriptor = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)
    if descriptor is None:
        return deserialize

    def read(data: bytes) -> Any:
        if len(data) > _PARSED_AT_ONCE_BYTES and has_more_fields(data, descriptor, MAX_FIELDS):
            raise DecodeError(f"more than {MAX_FIELDS} fields")
        return deserialize(data)

    return read


def has_more_fields(data: bytes, descriptor: Descriptor, most: int) -> bool:
    """Whether the message and all messages in it have more than `most` fields. What is torn counts as far as it goes:
    the parser refuses it."""
    pending = [(0, len(data), descriptor)]
    fields = 0
    try:
        while pending:
            at, end, message = pending.pop()
            known = message.fields_by_number
            while at < end:
                fields += 1
                if fields > most:
                    return True
                tag, at = _varint(data, at)
                kind = tag & 7
                if kind == 2:
                    size_bytes, at = _varint(data, at)
                    field = known.get(tag >> 3)
                    if field is not None and field.message_type is not None:
                        pending.append((at, min(at + size_bytes, end), field.message_type))
                    at += size_bytes
                elif kind == 0:
                    _, at = _varint(data, at)
                else:
                    at += _FIXED_BYTES.get(kind, 0)  # the marks of a group, which proto3 has none of, have no content
    except IndexError:
        return False
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that stands there, and where it ends. Raises IndexError where the bytes end first."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    number, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return number, at + 1
        shift += 7
