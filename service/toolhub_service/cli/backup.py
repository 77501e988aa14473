"""`toolhub backup` and `toolhub restore`: the data folder at one moment, and its way back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.output import counted, explaining, footnote, legible, print_json, text_option, wants_json

if TYPE_CHECKING:
    from toolhub_service.app.backup.checking import Checked
    from toolhub_service.app.backup.parts import Manifest


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--verify", "only_verify", is_flag=True, help="Check the backup TARGET instead of making one.")
@click.option("--workspaces", is_flag=True, help="Also take the files of calls (workspaces).")
@click.option("--without-secrets", is_flag=True, help="Leave out the keys (*.key) and secrets/: keep them elsewhere.")
@click.option("--unchecked", is_flag=True, help="Do not read the copy again; quicker where the audit log is long.")
@text_option
@settings_options
def backup(
    target: Path,
    only_verify: bool,
    workspaces: bool,
    without_secrets: bool,
    unchecked: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Back up the data folder to TARGET: a tar file where its name ends in .tar, .tar.gz or .tgz, else a folder.

    The hub may run; all databases, the audit log's checkpoints and the artifacts are of one moment. Run it as the hub's
    user. What lies in Redis, in PostgreSQL or in a bucket is not in it; the output says so.

    \b
    Examples:
      toolhub backup /backups/hub-monday.tar.gz --data-dir /var/lib/toolhub
      toolhub backup --verify /backups/hub-monday.tar.gz
    """
    from toolhub_service.app.backup.parts import BackupRefused
    from toolhub_service.app.backup.restoring import look_through
    from toolhub_service.app.backup.taking import take
    from toolhub_service.app.paths import Paths

    settings = read_settings(**options)
    with explaining(BackupRefused):
        if only_verify:
            found = look_through(target, Paths(settings).audit_key)
            _show(target, found.manifest, found.checked, as_json, "is whole")
            return
        manifest, checked = take(
            settings, target, workspaces=workspaces, with_secrets=not without_secrets, verify=not unchecked
        )
        _show(target, manifest, checked, as_json, "written")


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Move what is there to before-restore-… instead of refusing.")
@click.option("--dry-run", is_flag=True, help="Check the backup and the place; change nothing.")
@text_option
@settings_options
def restore(source: Path, replace: bool, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Restore BACKUP, made by `toolhub backup`, with the hub stopped.

    Checksums, databases and the audit log are checked before anything is put into its place. Refuses a folder that a
    hub uses, a folder with data (see --replace), and a backup of a later version.

    \b
    Examples:
      toolhub restore /backups/hub-monday.tar.gz --dry-run --data-dir /var/lib/toolhub
      toolhub restore /backups/hub-monday.tar.gz --data-dir /var/lib/toolhub
    """
    from toolhub_service.app.backup.parts import BackupRefused
    from toolhub_service.app.backup.restoring import restore as restore_backup

    settings = read_settings(**options)
    with explaining(BackupRefused):
        found = restore_backup(settings, source, replace=replace, dry_run=dry_run)
    _show(source, found.manifest, found.checked, as_json, "can be restored" if dry_run else "restored")
    if wants_json(as_json):
        return
    if found.moved_to is not None:
        click.echo(f"What was there before is in {found.moved_to}.")
    if found.unrecorded:
        click.echo(f"The audit log does not say that it was restored: {found.unrecorded}.")
    if not dry_run:
        footnote("What happened after the backup is forgotten, and keys and approvals used since can be used again.")


def _show(place: Path, manifest: Manifest, checked: Checked | None, as_json: bool, what: str) -> None:
    from toolhub_service.app.backup.parts import size_bytes

    made_at = _utc(manifest.made_at_unix_ms)
    if wants_json(as_json):
        facts = msgspec.to_builtins(manifest)
        del facts["entries"]
        checks = None if checked is None else msgspec.to_builtins(checked)
        print_json({**facts, "files": len(manifest.entries), "size_bytes": size_bytes(manifest), "checked": checks})
        return
    # A backup may come from anywhere: what it says of itself is not believed, nor obeyed by the terminal.
    click.secho(legible(f"✓ {place} {what}: as of {made_at}, tool-hub {manifest.version}"), fg="green")
    megabytes = size_bytes(manifest) / 1_000_000
    click.echo(
        f"{legible(', '.join(manifest.parts))}: {counted(len(manifest.entries), 'file')}, {megabytes:.1f} MB, "
        f"{counted(manifest.events, 'event')}, {counted(manifest.artifacts, 'artifact')}"
    )
    for name, reason in manifest.left_out.items():
        click.echo(legible(f"not in it: {name} ({reason})"))
    if checked is not None and checked.unverified:
        click.echo(f"The audit log was not verified: {checked.unverified}.")
    if checked is not None and checked.missing_artifacts:
        click.echo(f"{counted(checked.missing_artifacts, 'artifact')} had lost their bytes before.")


def _utc(unix_ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(unix_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
