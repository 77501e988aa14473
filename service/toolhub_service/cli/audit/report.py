"""`toolhub audit report`: what happened in a span of time, on the terminal, as JSON and as a page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from toolhub.v1 import event_pb2
from toolhub_service.cli.audit.events import Moment
from toolhub_service.cli.audit.opened_log import log_options, opened_log
from toolhub_service.cli.connection.client import connection_options
from toolhub_service.cli.terminal.output import (
    footnote,
    print_json,
    print_line,
    print_pairs,
    print_table,
    style,
    text_option,
    wants_json,
)

_READ = (
    *(event_pb2.EVENT_TYPE_TOOL_RESULT, event_pb2.EVENT_TYPE_POLICY_DENIED, event_pb2.EVENT_TYPE_AUTH_FAILED),
    *(event_pb2.EVENT_TYPE_ROLE_REFUSED, event_pb2.EVENT_TYPE_APPROVAL_ASKED, event_pb2.EVENT_TYPE_APPROVAL_DECIDED),
    *(event_pb2.EVENT_TYPE_APPROVAL_EXPIRED, event_pb2.EVENT_TYPE_JOB_STATE),
)


@click.command()
@click.option(
    "--since", type=Moment(), default="24h", show_default=True, help="Beginning of the report: as in `audit query`."
)
@click.option("--until", type=Moment(), help="End of the report; default: now.")
@click.option("--tenant", default="", help="Only what principals of this tenant did, by the policy in force.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page to this file, too.")
@text_option
@log_options
@connection_options
def report(
    since: datetime, until: datetime | None, tenant: str, page: Path | None, as_json: bool, **options: Any
) -> None:
    """Report calls by principal, refusals by reason and rule, approvals, the slowest tools and lost jobs.

    The page of --html is one file without scripts that loads nothing: it can be sent to others.

    \b
    Examples:
      toolhub audit report --since yesterday
      toolhub audit report --since 7d --html week.html
      toolhub audit report --data-dir /var/lib/toolhub
    """
    from toolhub_service.reports.activity import activity_report, report_sums, report_tables
    from toolhub_service.reports.activity_page import activity_page

    end = until or datetime.now(UTC)
    where = event_pb2.EventFilter(types=_READ, tenant=tenant)
    where.since.FromDatetime(since)
    where.until.FromDatetime(end)
    with opened_log({**options, "tenant": tenant}) as read:
        shown = activity_report(read(where), since=_iso(since), until=_iso(end))
    if page is not None:
        try:
            page.write_text(activity_page(shown), encoding="utf-8")
        except OSError as unwritable:
            raise click.ClickException(f"{page}: {unwritable.strerror}") from unwritable
    if wants_json(as_json):
        print_json(to_builtins(shown))
        return
    print_pairs(report_sums(shown))
    for title, headings, rows in report_tables(shown):
        if rows:
            print_line()
            print_line(style(title, bold=True))
            print_table(headings, rows)
    if page is not None:
        footnote(f"The page is in {page}.")


def _iso(moment: datetime) -> str:
    return f"{moment - timedelta(microseconds=moment.microsecond):%Y-%m-%dT%H:%M:%SZ}"
