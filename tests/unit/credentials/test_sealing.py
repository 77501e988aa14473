"""Sealed secrets open where they belong and nowhere else, under any of the keys."""

from __future__ import annotations

import base64

import pytest

from toolhub_service.credentials.sealing import KeyUnfit, SealBroken, SealingKeys, key_of
from toolhub_service.credentials.secret import CallerCredential, ClientAt, Secret, pack, unpack
from toolhub_service.domain.credential import CredentialKind

NEW, OLD = bytes(range(32)), bytes(32)
PLACE = ("acme", "alice", "shop", "OAUTH", "generation")
PLAIN = b"a secret of the test"


def test_a_sealed_value_opens_in_its_own_place_alone_and_unchanged() -> None:
    keys = SealingKeys({"k1": NEW})
    sealed = keys.seal(PLAIN, *PLACE)
    assert PLAIN not in sealed
    assert sealed != keys.seal(PLAIN, *PLACE), "each has a nonce of its own"
    assert keys.open("k1", sealed, *PLACE) == PLAIN
    others = [
        ("other", *PLACE[1:]),
        ("acme", "bob", *PLACE[2:]),
        ("acme", "alice", "flows", *PLACE[3:]),
        (*PLACE[:3], "HEADER", PLACE[4]),
        (*PLACE[:4], "another login"),
        ("", "acmealice", *PLACE[2:]),
        PLACE[:4],
        (*PLACE, ""),
    ]
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in (0, 11, 12, len(sealed) - 1)]
    for bytes_, place in [
        *((sealed, other) for other in others),
        *((each, PLACE) for each in (*changed, b"", sealed[:20])),
    ]:
        with pytest.raises(SealBroken) as broken:
            keys.open("k1", bytes_, *place)
        assert broken.value.key_id == ""


def test_the_first_key_seals_and_all_open() -> None:
    before = SealingKeys({"k1": OLD}).seal(PLAIN, *PLACE)
    rotated = SealingKeys({"k2": NEW, "k1": OLD})
    assert (rotated.current, rotated.open("k1", before, *PLACE)) == ("k2", PLAIN)
    assert rotated.open("k2", rotated.seal(PLAIN, *PLACE), *PLACE) == PLAIN
    with pytest.raises(SealBroken) as renamed:
        SealingKeys({"k2": OLD}).open("k2", before, *PLACE)
    assert renamed.value.key_id == "", "a key is not taken under another id"
    with pytest.raises(SealBroken) as gone:
        SealingKeys({"k2": NEW}).open("k1", before, *PLACE)
    assert gone.value.key_id == "k1"


def test_keys_are_32_bytes_in_either_writing_and_others_are_refused_without_being_shown() -> None:
    assert key_of(NEW.hex() + "\n") == key_of(base64.b64encode(NEW).decode()) == NEW
    assert key_of(base64.urlsafe_b64encode(b"\xff" * 32).decode()) == b"\xff" * 32
    for unfit in ("", "a password that somebody made up", NEW.hex()[:-2], base64.b64encode(NEW + b"x").decode()):
        with pytest.raises(KeyUnfit) as refused:
            key_of(unfit)
        assert not unfit or unfit not in str(refused.value)
    for keys in ({}, {"a key": NEW}, {"k": b"short"}):
        with pytest.raises(KeyUnfit):
            SealingKeys(keys)


def test_no_representation_shows_the_secret() -> None:
    secret = Secret("the value", refresh_token="the refresh token", client=ClientAt(client_secret="the client secret"))
    shown = repr(
        [secret, SealingKeys({"k1": NEW}), CallerCredential("h", "v value", "value", "g", CredentialKind.HEADER)]
    )
    assert shown == "[Secret(…), SealingKeys(k1), CallerCredential(…)]"
    assert unpack(pack(secret), Secret) == secret
    with pytest.raises(ValueError, match="newer version") as unread:
        unpack(b'{"value": 5, "x": "the value"}', Secret)
    assert "the value" not in str(unread.value)
