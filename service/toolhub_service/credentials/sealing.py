"""Secrets sealed by AES-256-GCM (NIST SP 800-38D) under named keys, each bound to its subject and owner.

The first key seals, all of them open: a new key is put before the old ones, later writes are sealed under it, and an
old key can be removed when no record names it any more. The binding is authenticated and not stored: sealed bytes that
were moved to another record do not open there.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

import orjson

NOT_INSTALLED: Final = "credentials of callers need the extra `credentials`: toolhub extras install credentials"
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_CONTEXT: Final = "tool-hub/credentials/1"
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")


def is_installed() -> bool:
    return find_spec("cryptography") is not None


class KeyUnfit(ValueError):
    """The key is invalid; the message says why, and contains nothing of the key."""


class SealBroken(Exception):
    """Sealed bytes cannot be opened: they were changed, moved, or sealed under a missing key (`key_id`)."""

    def __init__(self, key_id: str = "") -> None:
        super().__init__(f"the key `{key_id}` is not there" if key_id else "the sealed bytes do not belong here")
        self.key_id = key_id


def key_of(text: str) -> bytes:
    """Return 32 bytes, from 64 hex digits or base64. Raises KeyUnfit."""
    word = text.strip()
    try:
        key = bytes.fromhex(word) if _HEX.fullmatch(word) else base64.b64decode(word, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        # An empty key also gets the one message below, which reveals nothing of the input.
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyUnfit("it is not 32 bytes in base64 or hex; `openssl rand -base64 32` makes one")
    return key


class SealingKeys:
    """Never shown."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Keys by id; the first one seals. Raises KeyUnfit."""
        if not keys:
            raise KeyUnfit("there is no key")
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise KeyUnfit("the id of a key has letters, digits, `_`, `.` and `-` only, at most 64")
            if len(key) != KEY_BYTES:
                raise KeyUnfit(f"the key `{key_id}` does not have 32 bytes")
        self._keys = dict(keys)
        self.current = next(iter(keys))

    def __repr__(self) -> str:
        return f"SealingKeys({', '.join(self._keys)})"

    def seal(self, plain: bytes, *bound: str) -> bytes:
        """Seal with the current key: nonce, then ciphertext and tag."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        # 96 random bits: NIST SP 800-38D §8.3 allows 2^32 messages under one key, more than a hub will ever seal.
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._keys[self.current]).encrypt(nonce, plain, _associated_data(self.current, bound))

    def open(self, key_id: str, sealed: bytes, *bound: str) -> bytes:
        """Return the opened bytes. Raises SealBroken."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._keys.get(key_id)
        if key is None:
            raise SealBroken(key_id)
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, rest, _associated_data(key_id, bound))
        # Bytes too short for a nonce and a tag raise ValueError; for the caller both are the same.
        except (InvalidTag, ValueError):
            raise SealBroken from None


def _associated_data(key_id: str, bound: tuple[str, ...]) -> bytes:
    # As JSON: different lists of texts have different bytes, whatever characters they contain.
    return orjson.dumps([_CONTEXT, key_id, *bound])
