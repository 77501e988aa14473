"""How long what the hub keeps stays, and whether the log reaches the places it is carried to."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.paths import Paths
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.export import carried_to
from toolhub_service.stores.audit.sqlite import SqliteEvents

_DAY_S = 86_400.0
_BACKLOG = 100_000
_FREE = 0.05
_EXTRAS = {"otlp_endpoint": ("opentelemetry.proto", "otlp"), "bucket_url": ("obstore", "s3")}


def retention_checks(settings: Settings) -> Iterator[Finding]:
    """How long everything is kept, each place of `audit.export`, and the room that is left."""
    audit, workspace = settings.audit, settings.workspace
    kept = {
        "audit events": audit.keep_days,
        "workspaces": workspace.keep_days if workspace.per in ("request", "session") else 0.0,
        "jobs": settings.jobs.keep_s / _DAY_S,
        "approvals": settings.approvals.keep_s / _DAY_S,
        "artifacts": settings.artifacts.ttl_s / _DAY_S,
    }
    yield ok("retention", ", ".join(f"{what} {_days(days)}" for what, days in kept.items()))
    yield from _room(Paths(settings).data_dir)
    for name in ("file", "otlp_endpoint", "bucket_url"):
        if getattr(audit.export, name):
            yield _place(settings, name)


def _days(days: float) -> str:
    return f"{days:g} days" if days else "for ever"


def _room(data_dir: Path) -> Iterator[Finding]:
    with suppress(OSError):
        usage = shutil.disk_usage(data_dir)
        if usage.free < usage.total * _FREE:
            text = f"{usage.free / usage.total:.0%} of the disk of {data_dir} are free"
            advice = "Make room, or set audit.keep_days and workspace.keep_days: calls are refused when it is full."
            yield warn("room", text, advice)


def _place(settings: Settings, name: str) -> Finding:
    title, setting = f"audit to {name.partition('_')[0]}", f"audit.export.{name}"
    if name in _EXTRAS and find_spec(_EXTRAS[name][0].partition(".")[0]) is None:
        return fail(
            title, f"{setting} is set and its packages are missing", f"pip install 'tool-hub[{_EXTRAS[name][1]}]'."
        )
    if name == "file":
        folder = next(
            each for each in Path(settings.audit.export.file).expanduser().absolute().parents if each.exists()
        )
        if not os.access(folder, os.W_OK):
            return fail(title, f"{folder} cannot be written", "Change its owner, or name another file.")
    if settings.stores.postgres_url or not Paths(settings).audit.exists():
        return ok(title, "the metric toolhub_audit_export_backlog says how far behind it is")
    try:
        behind = carried_to(SqliteEvents(Paths(settings).audit), name.partition("_")[0])
    except (sqlite3.Error, ValueError):
        return warn(title, "how far it is cannot be read", "See what is said of the audit log.")
    if behind > _BACKLOG:
        advice = "See to it, for nothing leaves the log before: `audit_upkeep_failed` in the hub's log says why."
        return warn(title, f"{behind} events behind", advice)
    return ok(title, f"{behind} events behind")
