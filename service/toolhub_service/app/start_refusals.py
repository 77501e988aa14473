"""Why a hub does not start, in one line: which file, server or setting, and what to do.

The errors that callers read name no path and no address; the operator who starts the hub needs both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from toolhub_service.app.config_files.policy_files import PolicyFile
    from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
    from toolhub_service.policy.live import Change
    from toolhub_service.settings.document import Settings

_DAMAGED = (
    "It is damaged. Keep a copy and restore it from a backup; or move audit.db*, audit-checkpoints.jsonl and a copy of "
    "audit.key away together, and begin a new log with `toolhub audit begin`"
)
_UNUSABLE = "Check the folder's free space, owner and mode"
_REMEDY: Final = re.compile(r"(?<=\.)\s+(?=[A-Z`])")


class StartRefused(Exception):
    """The hub cannot start; the message says why and what to do."""


def load_first_policy(file: PolicyFile) -> Change:
    """Put the policy in force with which a hub starts. Raises StartRefused when the file is invalid.

    While a hub runs an invalid file keeps the previous policy; at the start there is none.
    """
    change = file.load()
    if not change.applied:
        raise StartRefused(change.problem)
    return change


def start_refusal(refused: Exception, settings: Settings) -> str:
    """Return one line about an exception that prevents a start and is not a defect."""
    from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
    from toolhub_service.domain.errors.reasons import Reason

    if isinstance(refused, ToolFailure):
        return _tool_failure(refused, settings)
    if isinstance(refused, HubFailure) and refused.reason is Reason.AUDIT_UNREACHABLE:
        return _unreachable_log(refused, settings)
    if not isinstance(refused, OSError):
        return str(refused)
    if refused.errno is None:  # raised by the hub, with its own message
        advice = "Find what listens there (`ss -ltnp`), or use another address with --listen."
        return f"{refused}. {advice}" if str(refused).startswith("cannot listen on") else str(refused)
    return f"{refused.filename or 'the system'}: {refused.strerror}. {_advice_for(refused, settings)}"


def reason_and_remedy(line: str) -> tuple[str, str]:
    """Return the two parts of a line of `start_refusal`; the second is empty where the reason says what to do."""
    reason, *remedy = _REMEDY.split(line, maxsplit=1)
    return reason, remedy[0] if remedy else ""


def _tool_failure(refused: ToolFailure, settings: Settings) -> str:
    from toolhub_service.app.config_files.paths import Paths

    error = refused.error
    details = error.details
    if details.get("component") == "audit" and not settings.stores.postgres_url:
        return _audit_failure(refused.__cause__, Paths(settings).audit)
    reason = details.get("reason")
    if details.get("store") == "redis":
        shown = _without_credentials(settings.stores.redis_url)
        return f"The Redis of stores.redis_url, {shown}, cannot be used: {reason}. Start it, or correct the URL."
    if details.get("store") == "postgres":
        return _postgres_unusable(str(details.get("server")), str(reason))
    if details.get("errno") and not reason:
        return f"{error.message} ({details['errno']}; artifacts: {Paths(settings).artifacts})"
    return f"{error.message} Reason: {reason}." if reason else error.message


def _unreachable_log(refused: HubFailure, settings: Settings) -> str:
    """The audit log is the first to connect to the server that the stores share."""
    from toolhub_service.stores.postgres.errors import reason_of
    from toolhub_service.stores.postgres.target import postgres_target

    place = postgres_target(settings.stores.postgres_url, application="").shown
    return _postgres_unusable(place, reason_of(refused.__cause__ or refused))


def _postgres_unusable(place: str, reason: str) -> str:
    return f"The PostgreSQL of stores.postgres_url, {place}, cannot be used: {reason}. Start it, or correct the URL."


def _audit_failure(cause: BaseException | None, file: Path) -> str:
    import sqlite3

    if not isinstance(cause, sqlite3.Error | OSError):  # refused by the writer's thread, which logs the cause
        return f"The audit log {file} cannot be written; `audit_write_failed` above says why. {_UNUSABLE}."
    is_damaged = isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.OperationalError)
    return f"The audit log {file} cannot be used: {cause}. {_DAMAGED if is_damaged else _UNUSABLE}."


def _without_credentials(url: str) -> str:
    """Return the address of a server, without user and password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


def _advice_for(refused: OSError, settings: Settings) -> str:
    from toolhub_service.app.config_files.paths import Paths

    folder = Paths(settings).data_dir.absolute()
    if refused.filename and Path(refused.filename).absolute().is_relative_to(folder):
        return (
            "The hub keeps its files there: check the folder's owner and mode, or use another folder with --data-dir."
        )
    return "Check it, or name another one in the configuration."


def refusals() -> tuple[type[Exception], ...]:
    """Return exceptions that prevent a start and are not defects."""
    from toolhub_service.app.config_files.editing import SecretFileInvalid
    from toolhub_service.app.config_files.key_file import KeyFileInvalid
    from toolhub_service.app.config_files.modes import FilesLoose
    from toolhub_service.app.listening import ListenRefused
    from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
    from toolhub_service.settings.loading import SettingsInvalid

    known = (OSError, FilesLoose, KeyFileInvalid, ListenRefused, SecretFileInvalid, SettingsInvalid, StartRefused)
    return (*known, HubFailure, ToolFailure)
