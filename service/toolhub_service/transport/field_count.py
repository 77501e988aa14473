"""Counts the fields of a message in its bytes, before it is parsed.

The parser creates all fields in one step, on the event loop. A Struct of 4 MiB can hold two million values, and parsing
it delayed every call by seconds. JSON as bytes is one field of any length, and is bounded by its own structure
(schema/json_structure.py). Wire format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor

MAX_FIELDS: Final = 60_000
"""About 15,000 members of a Struct."""
COUNTED_FROM_BYTES: Final = 64 * 1024
"""Smaller messages are parsed without counting."""
_FIXED_BYTES: Final = {1: 8, 5: 4}


def has_more_fields(data: bytes, descriptor: Descriptor, most: int) -> bool:
    """Return whether the message and all messages in it have more than `most` fields. Truncated bytes are counted as
    far as they go; the parser refuses them."""
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
                    at += _FIXED_BYTES.get(kind, 0)  # group marks, which proto3 does not use, have no content
    except IndexError:
        return False
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at this position, and where it ends. Raises IndexError where the bytes end first."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    number = byte & 127
    shift = 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return number, at + 1
        shift += 7
