"""`toolhub backup` and `toolhub restore`: copy the data folder as of one moment, and put the copy back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.terminal.output import (
    count_text,
    explaining,
    footnote,
    print_json,
    print_line,
    style,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub_service.app.backup.checking import Checked
    from toolhub_service.app.backup.parts import Manifest


def _trust_options(command: Any) -> Any:
    allow = click.option(
        "--allow-unsigned",
        is_flag=True,
        help="Also accept a backup that no trusted key has signed, such as one from before backups were signed.",
    )
    trust = click.option(
        "--trust",
        "trust_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Public keys of hubs whose backups are accepted (their backup.pub), instead of the data folder's own.",
    )
    return trust(allow(command))


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--verify", "only_verify", is_flag=True, help="Check the backup TARGET instead of making one.")
@click.option("--workspaces", is_flag=True, help="Also include the files of calls (workspaces).")
@click.option(
    "--without-secrets", is_flag=True, help="Leave out the keys (*.key) and secrets/, which you keep elsewhere."
)
@click.option("--unchecked", is_flag=True, help="Do not verify the copy; faster if the audit log is long.")
@_trust_options
@text_option
@settings_options
def backup(
    target: Path,
    only_verify: bool,
    trust_file: Path | None,
    allow_unsigned: bool,
    workspaces: bool,
    without_secrets: bool,
    unchecked: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Back up the data folder to TARGET: a tar file where its name ends in .tar, .tar.gz or .tgz, else a folder.

    The hub may run: databases, checkpoints of the audit log and artifacts are copied as of one moment. Run this as the
    hub's user. Data in Redis, in PostgreSQL or in a bucket are not included; the output says so. The data folder's
    backup.key signs the backup: keep a copy of backup.pub apart from the backups.

    \b
    Examples:
      toolhub backup /backups/hub-monday.tar.gz --data-dir /var/lib/toolhub
      toolhub backup --verify /backups/hub-monday.tar.gz --trust hub.pub
    """
    from toolhub_service.app.backup.parts import BackupRefused
    from toolhub_service.app.backup.restoring import inspect_backup
    from toolhub_service.app.backup.signing import trust_of
    from toolhub_service.app.backup.taking import take
    from toolhub_service.app.config_files.paths import Paths

    settings = read_settings(**options)
    if not only_verify and (trust_file or allow_unsigned):
        raise click.UsageError("--trust and --allow-unsigned belong to --verify, and to `toolhub restore`.")
    with explaining(BackupRefused):
        if only_verify:
            paths = Paths(settings)
            trust = trust_of(paths, trust_file, allows_unsigned=allow_unsigned)
            found = inspect_backup(target, paths.audit_key, trust)
            _show(target, found.manifest, found.checked, found.signed_by, as_json, "is whole")
            return
        taken = take(settings, target, workspaces=workspaces, with_secrets=not without_secrets, verify=not unchecked)
        _show(target, taken.manifest, taken.checked, taken.signed_by, as_json, "written")
        if taken.made_key is not None:
            footnote(
                f"Keep a copy of {taken.made_key} apart from the backups: `toolhub restore --trust` on another machine "
                "knows by it that they are this hub's."
            )


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Move existing data to before-restore-… instead of refusing.")
@click.option("--dry-run", is_flag=True, help="Check the backup and the data folder; change nothing.")
@_trust_options
@text_option
@settings_options
def restore(
    source: Path,
    replace: bool,
    dry_run: bool,
    trust_file: Path | None,
    allow_unsigned: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Restore BACKUP, made by `toolhub backup`, with the hub stopped.

    Signature, checksums, databases and the audit log are checked before anything is written. It refuses a backup
    without a trusted signature or of a later version, a folder that a hub uses, and a folder with data (see
    --replace). On another machine --trust names the backup.pub of the hub that made it.

    \b
    Examples:
      toolhub restore /backups/hub-monday.tar.gz --trust hub.pub --dry-run
      toolhub restore /backups/hub-monday.tar.gz --trust hub.pub --data-dir /var/lib/toolhub
    """
    from toolhub_service.app.backup.parts import BackupRefused
    from toolhub_service.app.backup.restoring import restore as restore_backup
    from toolhub_service.app.backup.signing import trust_of
    from toolhub_service.app.config_files.paths import Paths

    settings = read_settings(**options)
    with explaining(BackupRefused):
        trust = trust_of(Paths(settings), trust_file, allows_unsigned=allow_unsigned)
        found = restore_backup(settings, source, trust, replace=replace, dry_run=dry_run)
    what = "can be restored" if dry_run else "restored"
    _show(source, found.manifest, found.checked, found.signed_by, as_json, what)
    if wants_json(as_json):
        return
    if found.moved_to is not None:
        print_line(f"What was there before is in {found.moved_to}.")
    if found.unrecorded:
        print_line(f"The audit log does not say that it was restored: {found.unrecorded}.")
    if not dry_run:
        footnote("What happened after the backup is forgotten, and keys and approvals used since can be used again.")


def _show(place: Path, manifest: Manifest, checked: Checked | None, signed_by: str, as_json: bool, what: str) -> None:
    from toolhub_service.app.backup.parts import size_bytes

    made_at = _utc(manifest.made_at_unix_ms)
    if wants_json(as_json):
        facts = msgspec.to_builtins(manifest)
        # Thousands of files; their number is enough.
        del facts["entries"]
        checks = None if checked is None else msgspec.to_builtins(checked)
        size = {"files": len(manifest.entries), "size_bytes": size_bytes(manifest)}
        print_json({**facts, **size, "signed_by": signed_by, "checked": checks})
        return
    # A backup may come from anywhere: its own statements are neither trusted nor interpreted by the terminal.
    print_line(style(f"✓ {place} {what}: as of {made_at}, tool-hub {manifest.version}", fg="green"))
    megabytes = size_bytes(manifest) / 1_000_000
    print_line(
        f"{', '.join(manifest.parts)}: {count_text(len(manifest.entries), 'file')}, {megabytes:.1f} MB, "
        f"{count_text(manifest.events, 'event')}, {count_text(manifest.artifacts, 'artifact')}"
    )
    if not signed_by:
        print_line(style("not signed by anybody known: nothing says who wrote it", fg="yellow"))
    for name, reason in manifest.left_out.items():
        print_line(f"not in it: {name} ({reason})")
    if checked is not None and checked.unverified:
        print_line(f"The audit log was not verified: {checked.unverified}.")
    if checked is not None and checked.missing_artifacts:
        print_line(f"{count_text(checked.missing_artifacts, 'artifact')} had lost their bytes before.")


def _utc(unix_ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(unix_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
