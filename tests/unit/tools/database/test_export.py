"""Results as files, read back by readers of others."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, cast

import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
import pytest

from toolhub_service.domain.json import JsonValue
from toolhub_service.tools.database.connection import Column, ExportFormat, Row
from toolhub_service.tools.database.export import export_rows

COLUMNS = [Column(name="n", type="bigint"), Column(name="n", type="text"), Column(name="b", type="boolean")]
ROWS: list[Row] = [
    [1, 'a "quoted", text', True],
    [None, "two\r\nlines", False],
    ["9007199254740993", "", None],
    [-2, None, True],
    *cast(list[Row], [[at, "小明" * at, None] for at in range(40)]),
]


class RowBatches:
    """The rows in batches of ten."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    async def next_rows(self) -> list[Row]:
        batch, self._rows = self._rows[:10], self._rows[10:]
        return batch


async def written(export: ExportFormat, rows: list[Row], *, has_types: bool = True) -> bytes:
    return b"".join([piece async for piece in export_rows(export, COLUMNS, RowBatches(rows), has_types=has_types)])


def as_text(value: JsonValue) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


async def test_csv_is_what_its_readers_expect() -> None:
    header, *rows = csv.reader(io.StringIO((await written("csv", ROWS)).decode(), newline=""), strict=True)
    assert header == ["n", "n_2", "b"]
    assert rows == [[as_text(value) for value in row] for row in ROWS]


async def test_json_lines_have_a_name_for_each_value() -> None:
    lines = [json.loads(line) for line in (await written("jsonl", ROWS)).splitlines()]
    assert lines == [dict(zip(("n", "n_2", "b"), row, strict=True)) for row in ROWS]


@pytest.mark.parametrize("has_types", [True, False])
async def test_parquet_has_numbers_where_the_database_declares_them(has_types: bool) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(await written("parquet", ROWS, has_types=has_types)))
    kinds = ["int64", "string", "bool"] if has_types else ["string"] * 3
    assert [str(field.type) for field in table.schema] == kinds

    def expected(row: Row) -> list[Any]:
        if has_types:
            return [None if row[0] is None else int(str(row[0])), *row[1:]]
        return [None if value is None else str(value) for value in row]

    assert [list(row.values()) for row in table.to_pylist()] == [expected(row) for row in ROWS]


@pytest.mark.parametrize("export", ["csv", "jsonl", "parquet"])
async def test_an_empty_result_is_a_file_too(export: ExportFormat) -> None:
    data = await written(export, [])
    assert {"csv": b"n,n_2,b\r\n", "jsonl": b""}.get(export, data) == data
