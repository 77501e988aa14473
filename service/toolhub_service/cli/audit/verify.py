"""`toolhub audit verify`: the log of a running hub, the files of a hub that may be down, and exported lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub.v1 import audit_service_pb2 as pb
from toolhub_service.cli.audit.opened_log import log_options
from toolhub_service.cli.config import read_settings
from toolhub_service.cli.connection.client import connect_by_options, connection_options
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    count_text,
    explaining,
    footnote,
    message_as_json,
    print_json,
    print_line,
    style,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub_service.settings.document import Settings
    from toolhub_service.stores.audit.verify_lines import LinesVerified

_FILE = click.Path(path_type=Path, allow_dash=True)


@click.command()
@click.option(
    "--file",
    "named_files",
    metavar="FILE…",
    type=_FILE,
    multiple=True,
    help="Verify lines of audit.archive_folder, audit.export or `toolhub audit export --as lines` instead; - for "
    "standard input. With --data-dir the log must continue where they end.",
)
@click.argument("files", metavar="", nargs=-1, type=_FILE)
@click.option(
    "--part",
    is_flag=True,
    help="The lines of --file are a part of the log: chains may begin before and end after them.",
)
@click.option("--audit-key", type=click.Path(path_type=Path), help="audit.key of the hub that wrote the lines.")
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    help="audit-checkpoints.jsonl to compare the lines with.",
)
@text_option
@log_options
@connection_options
def verify(
    data_dir: Path | None,
    config_file: Path | None,
    named_files: tuple[Path, ...],
    files: tuple[Path, ...],
    part: bool,
    audit_key: Path | None,
    checkpoints: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Verify the hash chains and checkpoints; exit 1 and print the first bad event when one was changed.

    \b
    Examples:
      toolhub audit verify
      toolhub audit verify --data-dir /var/lib/toolhub
      toolhub audit verify --data-dir /var/lib/toolhub --file /archive/audit-*.jsonl
      toolhub audit verify --part --audit-key audit.key --file events.jsonl
    """
    offline = data_dir is not None or config_file is not None
    settings = read_settings(config_file, data_dir) if offline else None
    if named_files:
        _verify_lines([*named_files, *files], settings, audit_key, checkpoints, part, as_json)
        return
    if files or part or audit_key or checkpoints:
        raise click.UsageError("--part, --audit-key, --checkpoints and names of files belong to --file.")
    if settings is not None:
        answer = _verify_files(settings)
    else:
        with connect_by_options(options) as connection:
            answer = connection.call(connection.audit.VerifyAudit, pb.VerifyAuditRequest())
    if wants_json(as_json):
        print_json({"ok": answer.ok, **message_as_json(answer)})
    else:
        _show_verification(answer)
    if not answer.ok:
        sys.exit(EXIT_REFUSED)


def _verify_files(settings: Settings) -> pb.VerifyAuditResponse:
    from toolhub_service.app.offline import OfflineRefused, verify_audit
    from toolhub_service.transport.convert.records import from_verification

    with explaining(OfflineRefused):
        return from_verification(verify_audit(settings))


def _verify_lines(
    files: list[Path],
    settings: Settings | None,
    audit_key: Path | None,
    checkpoints: Path | None,
    is_part: bool,
    as_json: bool,
) -> None:
    from toolhub_service.app.offline import OfflineRefused, ReferenceFiles, verify_lines
    from toolhub_service.transport.convert.records import from_verification

    with explaining(OfflineRefused):
        found: LinesVerified = verify_lines(files, ReferenceFiles(settings, audit_key, checkpoints), is_part=is_part)
    answer = from_verification(found.verification)
    if answer.ok and not answer.events_checked:
        # An export that failed leaves an empty file behind: that nothing in it was changed would say nothing.
        raise click.ClickException("There is no event in " + ", ".join(map(str, files)) + ": nothing was verified.")
    if wants_json(as_json):
        print_json({"ok": answer.ok, **message_as_json(answer), "repeated_lines": found.repeated})
    else:
        _show_verification(answer)
        if found.repeated:
            print_line(
                f"{count_text(found.repeated, 'line')} occurred twice: exports and archives repeat lines after a crash."
            )
        if answer.ok and settings is None and checkpoints is None:
            footnote("Whether the end was cut off is not known: add --data-dir or --checkpoints to find out.")
    if not answer.ok:
        sys.exit(EXIT_REFUSED)


def _show_verification(answer: pb.VerifyAuditResponse) -> None:
    if answer.ok:
        print_line(
            style(
                f"✓ {count_text(answer.events_checked, 'event')} in {count_text(answer.writers_checked, 'chain')}: "
                "none changed, removed or moved",
                fg="green",
            )
        )
        return
    for fault in answer.faults:  # the lines of a file may be anybody's
        where = f"writer {fault.writer}, sequence {fault.sequence}: " if fault.writer else ""
        print_line(style(f"✗ {where}{fault.reason}", fg="red"))
    checked = count_text(answer.events_checked, "event")
    print_line(f"{checked} checked. Do not trust events that follow a fault of the same writer.")
