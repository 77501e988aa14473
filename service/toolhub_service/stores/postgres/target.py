"""Parses a PostgreSQL URL (or `key=value` text), and adds what every connection of the hub needs.

The URL itself never reaches a message: libpq quotes what it could not read, and a URL holds a password.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason

_DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    # A peer that vanished silently is noticed after about ten seconds, whether the hub waits for it or sends.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    conninfo: str
    """The connection string for psycopg; holds the password."""
    shown: str
    """`host:port/database`, for messages."""


def postgres_target(url: str, *, application: str) -> PostgresTarget:
    """Return the target; `application` names the connection on the server. Raises HubFailure POSTGRES_URL_INVALID."""
    from psycopg import ProgrammingError  # from an optional extra: a hub without PostgreSQL lacks it
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        asked: dict[str, Any] = conninfo_to_dict(url)
    except ProgrammingError:
        message = "stores.postgres_url cannot be read: write postgresql://user:password@host:5432/database."
        raise HubFailure(StartReason.POSTGRES_URL_INVALID, message) from None
    wanted = _DEFAULTS | {"fallback_application_name": application} | asked
    host = asked.get("host") or asked.get("hostaddr") or "local socket"
    return PostgresTarget(make_conninfo(**wanted), f"{host}:{asked.get('port', 5432)}/{asked.get('dbname', '')}")
