"""What of a source's values is secret, and that nothing else is taken for one."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from toolhub_service.guards.secrets import Redactor
from toolhub_service.sections.source_config import SecretRef, SourceValues


@pytest.fixture
def values() -> SourceValues:
    return SourceValues(Redactor())


def test_each_long_line_of_a_key_is_secret_for_it_is_shown_line_by_line(tmp_path: Path, values: SourceValues) -> None:
    (tmp_path / "key").write_text("-----BEGIN X-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nshort\n-----END X-----\n")

    values.one(SecretRef(file=str(tmp_path / "key")))

    assert "MIIEvQIBADANBgkqhkiG9w0BAQ" in values.secrets
    assert "short" not in values.secrets
    assert not values.secrets & {"-----BEGIN X-----", "-----END X-----", "X-----"}, "it hides nothing of other keys"


def test_secrets_of_a_command_line_are_found_by_flags_assignments_and_urls(values: SourceValues) -> None:
    values.all(("--token", "flagged-1", "--api-key=joined-22", "DB_PASSWORD=assigned-3", "--root", "/srv/documents"))
    values.all(("postgres://me:in-the-url@db.example.com/x", "https://only-a-token@example.com/", "--token", "--quiet"))

    found = {"flagged-1", "joined-22", "assigned-3", "in-the-url", "only-a-token"}
    assert values.secrets == found


def test_a_basic_credential_is_secret_decoded_too(values: SourceValues) -> None:
    pair = base64.b64encode(b"me:password-of-it").decode()

    values.of({"Authorization": f"Basic {pair}"})

    assert {pair, "password-of-it"} <= values.secrets


def test_path_and_query_of_a_foreign_url_are_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "https://me:pass-of-it@example.com/v1/0123456789abcdef01/mcp?session=0123456789")
    values = SourceValues(Redactor())

    values.one(SecretRef(env="WHERE"), is_secret=False)

    assert {"pass-of-it", "0123456789abcdef01", "0123456789"} <= values.secrets
    assert "example.com" not in values.secrets


def test_arguments_of_langchain_code_are_learnt_by_their_names_at_any_depth(values: SourceValues) -> None:
    values.learn_within(
        {"root_dir": "documents", "wrapper": [{"api_key": "key-of-the-wrapper", "k": 3}], "db": "x://a:passw0rd@h"}
    )

    assert values.secrets == {"key-of-the-wrapper", "passw0rd"}


def test_the_redactor_knows_all_of_it() -> None:
    redactor = Redactor()

    SourceValues(redactor).all(("--token", "flagged-1"))

    assert redactor.text("it said flagged-1") == "it said ***"
