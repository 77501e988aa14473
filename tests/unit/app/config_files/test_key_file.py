"""The file of API keys as versions have written it, what is added to it, and which key a rotation means."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from toolhub_service.app.config_files.key_file import KeyFile, KeyFileInvalid, KeyUses, RotationRefused, Wanted
from toolhub_service.app.key_care import expires_soon
from toolhub_service.domain.call import Role
from toolhub_service.identity.api_keys import StoredKey, key_id_of

SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
OF_0_1_0 = f"thk_1a2b3c4d:\n  name: research-agent\n  sha256: {SHA}\n"
"""As versions up to this one wrote it, byte by byte."""
WHOLE = f"""\
thk_0000aaaa:
  name: ci
  sha256: {SHA}
  created: '2026-11-26T10:00:00Z'
  expires: '2027-02-24T10:00:00Z'
  roles:
  - agent
  capabilities:
  - read:*
  tenant: acme
  replaced_by: thk_0000bbbb
"""
DAY_S = 86_400


class Clock:
    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api-keys.yaml"


def test_a_file_of_former_versions_is_read_and_kept(path: Path) -> None:
    path.write_text(OF_0_1_0)
    assert KeyFile(path).read() == {"thk_1a2b3c4d": StoredKey("research-agent", SHA)}
    KeyFile(path).create("other")
    kept = yaml.safe_load(path.read_text())
    assert kept["thk_1a2b3c4d"] == {"name": "research-agent", "sha256": SHA}, "so that it can be read by them again"


def test_everything_of_a_key_is_read_as_it_was_written_with_quotes_or_without(path: Path) -> None:
    for text in (WHOLE, WHOLE.replace("'", ""), WHOLE.replace("Z'", "'")):
        path.write_text(text)
        (stored,) = KeyFile(path).read().values()
        assert stored == StoredKey(
            "ci",
            SHA,
            1_795_687_200,
            1_803_463_200,
            frozenset({Role.AGENT}),
            frozenset({"read:*"}),
            "acme",
            "thk_0000bbbb",
        )
        file = KeyFile(path)
        assert file.revoke(key_id_of(file.create("gone")))
        assert path.read_text() == WHOLE


@pytest.mark.parametrize(
    "line", ["roles: [root]", "expires: soon", "created: 5 days", "scopes: [read]", "capabilities: read"]
)
def test_a_file_with_something_unknown_is_refused_and_not_taken_for_more_rights(path: Path, line: str) -> None:
    path.write_text(f"{OF_0_1_0}  {line}\n")
    file = KeyFile(path)
    with pytest.raises(KeyFileInvalid, match=r"api-keys\.yaml"):
        file.read()
    assert file.has_changed(), "it is read again, until it can be"


def test_a_file_is_read_again_when_it_has_changed(path: Path) -> None:
    file = KeyFile(path)
    assert file.has_changed()
    file.read()
    assert not file.has_changed(), "there is none, as before"
    KeyFile(path).create("robot")
    assert file.has_changed()
    file.read()
    assert not file.has_changed()
    path.unlink()
    assert file.has_changed()


def test_a_rotation_keeps_scope_and_length_and_lets_the_old_key_end_no_later_than_it_would(path: Path) -> None:
    clock = Clock()
    file = KeyFile(path, clock)
    start_s = int(clock.now_s)
    old_id = key_id_of(
        file.create("ci", Wanted(start_s + 90 * DAY_S, frozenset({Role.AGENT}), frozenset({"read:*"}), "acme"))
    )
    clock.now_s += 80 * DAY_S
    rotated = file.rotate("ci", 30 * DAY_S)
    assert rotated is not None
    keys = file.read()
    old, new = keys[old_id], keys[key_id_of(rotated.key)]
    assert (rotated.old_id, old.replaced_by, old.expires_s) == (old_id, key_id_of(rotated.key), start_s + 90 * DAY_S)
    assert (new.roles, new.capabilities, new.tenant) == (old.roles, old.capabilities, "acme")
    assert new.expires_s == start_s + (80 + 90) * DAY_S
    with pytest.raises(RotationRefused, match=new.replaced_by or key_id_of(rotated.key)):
        file.rotate(old_id, DAY_S)
    again = file.rotate("ci", 0, expires_s=start_s + 1_000 * DAY_S)
    assert again is not None
    assert again.old_id == key_id_of(rotated.key)
    assert file.read()[again.old_id].has_expired(clock.now_s)
    assert file.read()[key_id_of(again.key)].expires_s == start_s + 1_000 * DAY_S


def test_a_rotation_of_one_of_several_keys_wants_its_id(path: Path) -> None:
    file = KeyFile(path)
    first, second = (key_id_of(file.create("ci")) for _ in range(2))
    with pytest.raises(RotationRefused, match=f"{first}.*{second}|{second}.*{first}"):
        file.rotate("ci", DAY_S)
    rotated = file.rotate(first, DAY_S)
    assert rotated is not None
    assert rotated.old_id == first
    assert file.rotate("nobody", DAY_S) is None
    assert sorted(file.revoke_all(file.read())) == sorted([first, second, key_id_of(rotated.key)])
    assert file.read() == {}


@pytest.mark.parametrize(
    ("life_d", "left_d", "soon"),
    [(90, 10, False), (90, 8, True), (365, 15, False), (365, 13, True), (1, 0.05, True), (90, -1, False)],
)
def test_a_key_is_reported_as_expiring_within_two_weeks_or_a_tenth_of_its_life(
    life_d: int, left_d: float, soon: bool
) -> None:
    key = StoredKey("ci", SHA, created_s=0, expires_s=life_d * DAY_S)
    assert expires_soon(key, (life_d - left_d) * DAY_S) is soon
    replaced = StoredKey("ci", SHA, 0, life_d * DAY_S, replaced_by="thk_0")
    assert not expires_soon(replaced, (life_d - left_d) * DAY_S)


def test_uses_of_several_hubs_keep_the_later_moment_and_nothing_of_keys_that_are_gone(tmp_path: Path) -> None:
    uses = KeyUses(tmp_path / "used.json")
    assert uses.read() == {}
    uses.add({"thk_1": 10, "thk_2": 10, "thk_gone": 10}, {"thk_1", "thk_2"})
    uses.add({"thk_1": 5, "thk_3": 7}, {"thk_1", "thk_2", "thk_3"})
    assert uses.read() == {"thk_1": 10, "thk_2": 10, "thk_3": 7}
    uses.add({}, {"thk_3"})
    assert uses.read() == {"thk_3": 7}
    (tmp_path / "used.json").write_text("[")
    assert uses.read() == {}
