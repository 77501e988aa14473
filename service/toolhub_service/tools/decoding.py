"""The text encodings that file tools accept: a fixed table, because Python's registry also holds codecs that inflate
(`zlib`), run escapes (`unicode_escape`) or are no text at all.
"""

from __future__ import annotations

import asyncio
from typing import Final

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.registry.cooperative import in_thread
from toolhub_service.schema.strict_json import MAX_DEPTH, Structure, bound_structure, has_little, lexical_depth, loads

# JSON that an upstream sent, read strictly, and beside other calls where it is large.
#
# A parser holds the interpreter while it makes its objects, so that bytes alone bound nothing: structure is counted
# first (schema/strict_json.py). What is large is read in a thread that takes short turns with the event loop, one at a
# time in the process, for small values take twenty times the room of their text.

MOST: Final = Structure(containers=250_000, members=300_000, separators=1_500_000)
"""Of one body: a parser makes it in under a tenth of a second. Four megabytes of records or coordinates have less."""
AT_ONCE_BYTES: Final = 32 * 1024
"""Read at once, whatever it holds."""
LIGHT_BYTES: Final = 1024 * 1024
"""Read at once where it holds few values."""


class JsonBodies:
    """Of one event loop: whoever reads large ones waits for those before."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, data: bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
        """The value. Raises ToolFailure INVALID_INPUT for what is no strict JSON, too deep, or of too many values."""
        if not is_large(data):
            return loads(data, max_bytes=len(data), max_depth=max_depth)
        async with self._reading:
            return await in_thread(_read, data, max_depth)


def is_large(data: bytes) -> bool:
    """Whether it would hold the event loop to read it or what was made of it."""
    return len(data) > AT_ONCE_BYTES and (len(data) > LIGHT_BYTES or not has_little(data))


def _read(data: bytes, max_depth: int) -> JsonValue:
    bound_structure(data, MOST)
    if lexical_depth(data, max_depth) > max_depth:
        raise refuse(ErrorKind.INVALID_INPUT, f"The JSON is nested deeper than {max_depth} levels.", reason="too_deep")
    return loads(data, max_bytes=len(data), max_depth=max_depth)


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


def judge_encoding(name: str) -> str:
    """The codec's name. Raises ToolFailure INVALID_INPUT for one that is not in the table."""
    known = _KNOWN.get(name.strip().lower().replace("_", "-"))
    if known is None:
        message = "The encoding is not known here. Use one of the names in details, utf-8 when in doubt."
        raise refuse(ErrorKind.INVALID_INPUT, message, encodings=list(_NAMES))
    return known


def undecodable(path: str, encoding: str, at_byte: int) -> ToolFailure:
    """The refusal for bytes that are not text in `encoding`."""
    message = (
        f'"{path}" is not {encoding} text (byte {at_byte}). Read it with its own encoding, such as "gb18030" or '
        '"cp1252"; "latin-1" shows any bytes. A binary file cannot be read as text.'
    )
    return refuse(ErrorKind.INVALID_INPUT, message, encoding=encoding, at_byte=at_byte)


def encoded(text: str, encoding: str) -> bytes:
    """The bytes of `text`. Raises ToolFailure INVALID_INPUT when the encoding cannot express it."""
    codec = judge_encoding(encoding)
    try:
        return text.encode(codec)
    except UnicodeEncodeError as error:
        message = f"The text holds characters that {codec} cannot express, first at index {error.start}. Use utf-8."
        raise refuse(ErrorKind.INVALID_INPUT, message, encoding=codec, at_index=error.start) from error
