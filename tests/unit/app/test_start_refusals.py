"""The message of `toolhub serve` when a hub cannot start: one line, with the file or server, and the remedy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from toolhub_service.app.listening import ListenRefused, host_and_port, listening_of
from toolhub_service.app.start_refusals import start_refusal
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.settings.loading import load_settings

SETTINGS = load_settings(
    None, {"TOOLHUB_DATA_DIR": "/srv/hub", "TOOLHUB_STORES_REDIS_URL": "redis://me:hidden-word@cache:6379/0"}
)
TAKEN = "cannot listen on 127.0.0.1:1: the address is in use, or not one of this machine"


def message_of(refused: Exception) -> str:
    return start_refusal(refused, SETTINGS)


def audit_broken_by(cause: Exception) -> ToolFailure:
    broken = refuse(ErrorKind.IO_ERROR, "The audit log cannot be written.", component="audit", cause="disk")
    broken.__cause__ = cause
    return broken


@pytest.mark.parametrize(
    ("refused", "line"),
    [
        (HubFailure(StartReason.REDIS_EVICTS, "It forgets."), "It forgets."),
        (refuse(ErrorKind.TOOL_UNAVAILABLE, "The file is not ours."), "The file is not ours."),
        (
            refuse(ErrorKind.TOOL_UNAVAILABLE, "Try again.", store="redis", reason="full"),
            "The Redis of stores.redis_url, cache:6379, cannot be used: full. Start it, or correct the URL.",
        ),
        (
            refuse(ErrorKind.TOOL_UNAVAILABLE, "Try again.", store="postgres", server="db:5432/hub", reason="full"),
            "The PostgreSQL of stores.postgres_url, db:5432/hub, cannot be used: full. Start it, or correct the URL.",
        ),
        (
            OSError(TAKEN),
            f"{TAKEN}. Find what listens there (`ss -ltnp`), or use another address with --listen.",
        ),
        (
            FileExistsError(17, "File exists", "/srv/hub"),
            (
                "/srv/hub: File exists. The hub keeps its files there: check the folder's owner and mode, "
                "or use another folder with --data-dir."
            ),
        ),
        (
            PermissionError(13, "Permission denied", "/etc/hub/x"),
            "/etc/hub/x: Permission denied. Check it, or name another one in the configuration.",
        ),
    ],
)
def test_an_operator_sees_problems_and_remedies(refused: Exception, line: str) -> None:
    assert message_of(refused) == line


def test_an_audit_log_that_fails_after_it_was_opened_refers_to_the_log_line_with_the_reason() -> None:
    late = refuse(ErrorKind.IO_ERROR, "The audit log cannot be written.", component="audit", cause="disk")
    assert message_of(late).startswith(
        "The audit log /srv/hub/audit.db cannot be written; `audit_write_failed` above says"
    )


def test_a_damaged_audit_log_is_distinguished_from_one_that_cannot_be_written() -> None:
    damaged = message_of(audit_broken_by(sqlite3.DatabaseError("file is not a database")))
    assert damaged.startswith("The audit log /srv/hub/audit.db cannot be used: file is not a database. It is damaged.")
    full = message_of(audit_broken_by(sqlite3.OperationalError("database or disk is full")))
    assert full == (
        "The audit log /srv/hub/audit.db cannot be used: database or disk is full. "
        "Check the folder's free space, owner and mode."
    )


@pytest.mark.parametrize("address", ["foo", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", ":x", "[::1]"])
def test_an_invalid_address_is_refused_by_the_name_of_its_setting(address: str) -> None:
    with pytest.raises(ListenRefused, match=r"^metrics\.listen is '.*', which is no address: write host:port"):
        host_and_port("metrics.listen", address)


def test_an_address_comes_apart_into_host_and_port() -> None:
    assert host_and_port("metrics.listen", "[::1]:9464") == ("::1", 9464)


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")

    def refused(**tls: str) -> str:
        given = {f"TOOLHUB_SERVER_TLS_{name.upper()}": value for name, value in tls.items()}
        with pytest.raises(ListenRefused) as caught:
            listening_of(load_settings(None, given))
        return str(caught.value)

    assert refused(certificate_file=str(text)).startswith("server.tls.key_file is not set")
    gone = tmp_path / "gone.pem"
    assert refused(certificate_file=str(text), key_file=str(gone)) == (
        f"server.tls.key_file: {gone}: No such file or directory."
    )
    assert refused(certificate_file=str(text), key_file=str(text)).startswith(
        f"server.tls: {text} and {text} are not a PEM certificate"
    )
