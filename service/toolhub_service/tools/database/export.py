"""A whole result as a file: CSV (RFC 4180), JSON Lines or Parquet, written as the rows arrive."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import IO, Any, Final, Protocol

import msgspec

from toolhub_service.domain.json import JsonValue
from toolhub_service.tools.database.connection import Column, ExportFormat, Row

MEDIA_TYPES: Final[dict[ExportFormat, str]] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}
_PIECE_BYTES: Final = 256 * 1024
_PIECE_ROWS: Final = 8


class Batches(Protocol):
    """Returns the next rows of a result; empty at the end."""

    async def next_rows(self) -> list[Row]: ...


def missing_for(export: ExportFormat) -> str:
    """Return what is not installed, with what to do; empty: nothing."""
    if export != "parquet" or find_spec("pyarrow"):
        return ""
    return "pyarrow is not installed: toolhub extras install parquet"


def export_rows(
    export: ExportFormat, columns: Sequence[Column], rows: Batches, *, has_types: bool
) -> AsyncIterator[bytes]:
    """Yield the bytes of the file in pieces, of which one is in memory. `has_types`: each column has one type."""
    names = _distinct([column.name for column in columns])
    if export == "parquet":
        return _parquet(names, [column.type if has_types else "" for column in columns], rows)
    return _lines(names, rows) if export == "jsonl" else _csv(names, rows)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return distinct names, because a query may give two columns the same name."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return distinct


async def _csv(names: list[str], rows: Batches) -> AsyncIterator[bytes]:
    yield _csv_text([names])
    while batch := await rows.next_rows():
        for at in range(0, len(batch), _PIECE_ROWS):
            # A few rows at a time: a row may have 256 KiB, and is in memory twice while it is encoded.
            yield _csv_text(batch[at : at + _PIECE_ROWS])


def _csv_text(rows: Sequence[Sequence[JsonValue]]) -> bytes:
    # RFC 4180 ends lines by CRLF.
    return "".join(f"{','.join(map(_cell, row))}\r\n" for row in rows).encode("utf-8", "replace")


def _cell(value: JsonValue) -> str:
    """Return a value as a CSV cell. The module csv processes each character, which takes a second for 20 MB of long
    texts."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not text or any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


async def _lines(names: list[str], rows: Batches) -> AsyncIterator[bytes]:
    while batch := await rows.next_rows():
        for at in range(0, len(batch), _PIECE_ROWS):
            piece = batch[at : at + _PIECE_ROWS]
            yield b"".join(msgspec.json.encode(dict(zip(names, row, strict=True))) + b"\n" for row in piece)


async def _parquet(names: list[str], types: list[str], rows: Batches) -> AsyncIterator[bytes]:
    """Yield a Parquet file, which is first written to a temporary file because its index is at its end."""
    with tempfile.TemporaryFile(prefix="toolhub-parquet-") as file:
        writer = await asyncio.to_thread(_ParquetFile, file, names, types)
        while batch := await rows.next_rows():
            await asyncio.to_thread(writer.write, batch)
        await asyncio.to_thread(writer.close)
        file.seek(0)
        for piece in _pieces(file):
            yield piece


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    yield from iter(partial(file.read, _PIECE_BYTES), b"")


class _ParquetFile:
    """Writes numbers and booleans where the database declares them, else text."""

    def __init__(self, file: IO[bytes], names: list[str], types: list[str]) -> None:
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

        whole = (int, pa.int64())
        real = (float, pa.float64())
        known: dict[str, tuple[Callable[[Any], Any], Any]] = {
            **dict.fromkeys(("smallint", "integer", "bigint"), whole),
            **dict.fromkeys(("real", "double precision"), real),
            "boolean": (bool, pa.bool_()),
        }
        self._arrow: Any = pa
        self._kinds = [known.get(type_, (str, pa.string())) for type_ in types]
        self._schema = pa.schema([(name, kind) for name, (_, kind) in zip(names, self._kinds, strict=True)])
        self._writer: Any = parquet.ParquetWriter(file, self._schema)

    def write(self, rows: list[Row]) -> None:
        arrays = [
            self._arrow.array([None if row[at] is None else read(row[at]) for row in rows], type=kind)
            for at, (read, kind) in enumerate(self._kinds)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
