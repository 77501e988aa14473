"""`toolhub keys`: input, output, and the content of the files."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolhub_service.app.config_files.key_file import KeyFile, KeyUses
from toolhub_service.cli.root import toolhub
from toolhub_service.identity.api_keys import key_id_of

Type = Callable[..., Result]


@pytest.fixture
def type_(tmp_path: Path) -> Type:
    runner = CliRunner(env={"TOOLHUB_DATA_DIR": str(tmp_path / "hub"), "COLUMNS": "200"})
    return lambda *words: runner.invoke(toolhub, ["keys", *words])


def listed(type_: Type) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(type_("list", "-o", "json").stdout)
    return found


def test_a_key_goes_into_a_new_file_of_its_owner_and_replaces_none(type_: Type, tmp_path: Path) -> None:
    out = tmp_path / "ci.key"
    made = type_("create", "ci", "--expires", "90d", "--capabilities", "read:*", "--roles", "agent", "--out", str(out))
    assert made.exit_code == 0, made.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    key = out.read_text()
    assert key.strip().startswith("thk_")
    assert key.strip() not in made.output
    for words in (("create", "ci"), ("rotate", "ci")):
        refused = type_(*words, "--out", str(out))
        assert (refused.exit_code, "there is such a file" in refused.output) == (2, True)
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "elsewhere")
    assert type_("create", "ci", "--out", str(link)).exit_code != 0
    assert not (tmp_path / "elsewhere").exists()
    assert out.read_text() == key
    (record,) = listed(type_)
    assert record["id"] == key_id_of(key)
    assert (record["roles"], record["capabilities"]) == (["agent"], ["read:*"])
    assert {"created", "expires"} < set(record)
    assert "lastUsed" not in record


def test_a_rotation_that_fails_leaves_no_file(type_: Type, tmp_path: Path) -> None:
    refused = type_("rotate", "nobody", "--out", str(tmp_path / "new.key"))
    assert (refused.exit_code, "There is no key nobody" in refused.output) == (1, True)
    assert not (tmp_path / "new.key").exists()


def test_a_list_shows_expiry_and_scopes_of_keys(type_: Type, tmp_path: Path) -> None:
    first = key_id_of(type_("create", "ci", "--capabilities", "read:*").stdout)
    rotated = json.loads(type_("rotate", "ci", "--overlap", "24h", "--json").stdout)
    second = key_id_of(rotated["key"])
    assert rotated["replaces"] == first
    KeyUses(tmp_path / "hub" / "api-keys-used.json").add({first: 1_700_000_000}, {first})
    rows = {line.split()[0]: line for line in type_("list").stdout.splitlines()}
    assert f"replaced by {second}" in rows[first]
    assert "in 24 h" in rows[first]
    assert " d ago" in rows[first]
    assert "never" in rows[second]
    assert "read:*" in rows[second]
    assert next(record for record in listed(type_) if record["id"] == first)["lastUsed"] == "2023-11-14T22:13:20Z"


def test_a_name_revokes_all_keys_of_a_principal_and_an_id_one(type_: Type, tmp_path: Path) -> None:
    keys = [key_id_of(type_("create", name).stdout) for name in ("ci", "ci", "ann", "ann")]
    assert type_("revoke", keys[2]).stdout.startswith(f"{keys[2]} is revoked.")
    gone = type_("revoke", "ci").stdout
    assert "are revoked. A running hub refuses them within 2 seconds" in gone
    assert list(KeyFile(tmp_path / "hub" / "api-keys.yaml").read()) == [keys[3]]
    assert type_("revoke", "ci").exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--expires", "90"),
        ("--expires", "0m"),
        ("--expires", "9999w"),
        ("--capabilities", "a b"),
        ("--roles", "root"),
        ("--tenant", "../x"),
    ],
)
def test_scopes_that_no_key_can_have_are_refused_before_a_key_is_made(
    type_: Type, tmp_path: Path, words: tuple[str, str]
) -> None:
    refused = type_("create", "ci", *words, "--out", str(tmp_path / "ci.key"))
    assert refused.exit_code == 2, refused.output
    assert words[0] in refused.output
    assert not (tmp_path / "ci.key").exists()
    assert listed(type_) == []


def test_no_key_has_a_name_that_means_others_in_a_policy(type_: Type) -> None:
    for name in ("*", "corp:*", "group:corp/admins", "issuer:corp", "actor:bot"):
        refused = type_("create", name)
        assert (refused.exit_code, "would mean others" in refused.output) == (2, True), refused.output
    assert listed(type_) == []
