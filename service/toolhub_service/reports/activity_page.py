"""The report of activity as one HTML page: without scripts, and without anything to be loaded from elsewhere.

Names of tools, persons and rules are texts of others. They are escaped, and what would hide or turn text is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.reports.activity import ActivityReport, report_sums, report_tables

_STYLE: Final = (
    "body{font:15px/1.5 sans-serif;margin:2em auto;max-width:60em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3em .8em .3em 0;"
    "border-bottom:1px solid #ddd;overflow-wrap:anywhere}h2{margin-top:1.8em;font-size:1.1em}"
)
_HEAD: Final = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>tool-hub: activity</title><style>{_STYLE}</style></head><body>
<h1>Activity</h1>
"""


def activity_page(report: ActivityReport) -> str:
    """Return the page, ready to be written as UTF-8."""
    sums = _table((), report_sums(report))
    tables = (
        f"<h2>{_text(title)}</h2>\n{_table(headings, rows) if rows else '<p>None.</p>'}"
        for title, headings, rows in report_tables(report)
    )
    return "\n".join((f"{_HEAD}{sums}", *tables, "</body></html>\n"))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{_text(name)}</th>' for name in headings)}</tr>\n" if headings else ""
    body = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>\n{head}{body}\n</table>"


def _text(text: str) -> str:
    return escape(on_one_line(text))
