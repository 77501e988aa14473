"""What keeps a hub from starting, in one line for whoever starts it: which file, server or setting, and what to do.

Messages of refusals are written for callers of a hub that runs, and name no path and no address; here they are named.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolhub_service.app.paths import Paths
from toolhub_service.domain.errors import ToolFailure

if TYPE_CHECKING:
    from toolhub_service.settings.document import Settings

_DAMAGED = (
    "It is damaged. Keep a copy and restore it from a backup; or move audit.db*, audit-checkpoints.jsonl and a copy of "
    "audit.key away together, and begin a new log with `toolhub audit begin`"
)
_UNUSABLE = "Look at the folder's space, owner and mode"


def start_refusal(refused: Exception, settings: Settings) -> str:
    """One line, of anything that `serve` raises and that is no defect."""
    if isinstance(refused, ToolFailure):
        return _of_failure(refused, settings)
    if not isinstance(refused, OSError):
        return str(refused)
    if refused.errno is None:  # a sentence of our own
        advice = "Find what listens there (`ss -ltnp`), or take another address with --listen."
        return f"{refused}. {advice}" if str(refused).startswith("cannot listen on") else str(refused)
    return f"{refused.filename or 'the system'}: {refused.strerror}. {_place_of(refused, settings)}"


def _of_failure(refused: ToolFailure, settings: Settings) -> str:
    error = refused.error
    details = error.details
    if details.get("component") == "audit" and not settings.stores.postgres_url:
        return _of_audit(refused.__cause__, Paths(settings).audit)
    reason = details.get("reason")
    if details.get("store") == "redis":
        shown = _shown(settings.stores.redis_url)
        return f"The Redis of stores.redis_url, {shown}, cannot be used: {reason}. Start it, or correct the URL."
    if details.get("store") == "postgres":
        place = details.get("server")
        return (
            f"The PostgreSQL of stores.postgres_url, {place}, cannot be used: {reason}. Start it, or correct the URL."
        )
    if details.get("errno") and not reason:
        return f"{error.message} ({details['errno']}; artifacts: {Paths(settings).artifacts})"
    return f"{error.message} Reason: {reason}." if reason else error.message


def _of_audit(cause: BaseException | None, file: Path) -> str:
    if not isinstance(cause, sqlite3.Error | OSError):  # refused by the writer's thread, which logs what it met
        return f"The audit log {file} cannot be written; `audit_write_failed` above says why. {_UNUSABLE}."
    is_damaged = isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.OperationalError)
    return f"The audit log {file} cannot be used: {cause}. {_DAMAGED if is_damaged else _UNUSABLE}."


def _shown(url: str) -> str:
    """Where a server is, without user and password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


def _place_of(refused: OSError, settings: Settings) -> str:
    folder = Paths(settings).data_dir.absolute()
    if refused.filename and Path(refused.filename).absolute().is_relative_to(folder):
        return "The hub keeps its files there; look at it, or name another folder with --data-dir."
    return "Look at it, or name another in the configuration."
