"""The lock that one hub of all holds in PostgreSQL while it does the upkeep of the audit log."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

from toolhub_service.stores.audit.postgres_upkeep import SharedUpkeep


class BrokenConnection:
    is_closed = False

    def execute(self, statement: str) -> Any:
        raise psycopg.OperationalError("the server is gone")

    def close(self) -> None:
        self.is_closed = True


def test_server_that_breaks_while_it_is_asked_for_the_lock_is_reported_and_its_connection_closed() -> None:
    broken = BrokenConnection()

    class Store(SharedUpkeep):
        def connect(self) -> psycopg.Connection:
            return cast(psycopg.Connection, broken)

    with pytest.raises(psycopg.OperationalError, match="gone"):
        Store().take_upkeep_lock()
    assert broken.is_closed
