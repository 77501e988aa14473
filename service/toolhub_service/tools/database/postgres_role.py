"""Refuses a role of PostgreSQL whose rights no connection's terms could hold back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.tools.database.connection import not_usable
from toolhub_service.tools.database.postgres_catalog import fetch_rows

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_RIGHTS: Final = b"""
SELECT rolsuper, rolbypassrls, ARRAY(SELECT g.rolname::text FROM pg_catalog.pg_roles g WHERE g.rolname = ANY($1::text[])
    AND pg_has_role(current_user, g.oid, 'member') ORDER BY 1)
FROM pg_catalog.pg_roles WHERE rolname = current_user"""
# They read and write files of the server and run programs there, whatever checks statements pass.
_OF_THE_SERVER: Final = ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
_OF_ALL_ROWS: Final = ("pg_write_all_data",)


async def check_role(connection: AsyncConnection[Any], terms: DatabaseTerms) -> None:
    """Raises ToolFailure TOOL_UNAVAILABLE that says which right is too much.

    Run it outside of the statement's transaction, in which the relations that it reads would stay locked.
    """
    too_much = [*_OF_THE_SERVER, *(_OF_ALL_ROWS if terms.may_write else ())]
    found = await fetch_rows(connection, _RIGHTS, too_much)
    if not found:
        raise not_usable(terms.name, "its role is not among the server's roles")
    is_superuser, ignores_row_security, memberships = found[0]
    if is_superuser:
        fault = "is a superuser"
    elif memberships:
        fault = f"is a member of {', '.join(memberships)}"
    elif ignores_row_security and terms.may_write:
        fault = "ignores row security (BYPASSRLS)"
    else:
        return
    want = "write the tables it is for" if terms.may_write else "read"
    raise not_usable(terms.name, f"its role {fault}: give it one that may only {want}")
