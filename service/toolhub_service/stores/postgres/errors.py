"""The error while PostgreSQL cannot be used: it names the kind of failure, never an error's own text or the URL."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse

TROUBLE: tuple[type[Exception], ...] = (psycopg.Error, OSError)
"""psycopg's pool raises OperationalErrors, too."""


def unavailable(reason: str, shown: str) -> ToolFailure:
    """Return the caller's error. `reason` is for operators; `shown` is the server's address without its password."""
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        "The hub's shared store (PostgreSQL) cannot be used at the moment, and what depends on it is refused rather "
        "than guessed. Try again in a moment; an operator finds the cause under `reason`.",
        retry_after_s=1.0,
        store="postgres",
        server=shown,
        reason=reason,
    )


def connection_was_lost(error: Exception) -> bool:
    """Return whether the connection was lost, and a new one may work."""
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, PoolTimeout | PoolClosed):
        return False
    return error.sqlstate is None or error.sqlstate.startswith("57P")


def reason_of(error: BaseException) -> str:
    match error:
        case PoolClosed():
            return "the hub is closing"
        case PoolTimeout():
            return "no connection in time"
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification() | errors.InsufficientPrivilege():
            return "it refuses the user, the password or what they may do"
        case errors.QueryCanceled():
            return "no answer in time"
        case errors.TooManyConnections() | errors.DiskFull() | errors.OutOfMemory():
            return "it has no room"
        case errors.AdminShutdown() | errors.CrashShutdown() | errors.CannotConnectNow():
            return "it is starting or stopping"
        case psycopg.Error() if error.sqlstate:
            return f"it answered {error.sqlstate}"
        case _:
            return f"no connection ({type(error).__name__})"
