"""Secrets sealed by AES-256-GCM (NIST SP 800-38D) under named keys, each bound to what it is and whose.

The first key seals, all of them open: a new one is put before the old ones, what is written from then on is sealed
under it, and an old one can go when nothing names it any more. What is bound is authenticated and not kept: sealed
bytes that were put in another place of a store do not open there.
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

NOT_INSTALLED: Final = "credentials of callers need the extra `credentials`: pip install 'tool-hub[credentials]'"
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_CONTEXT: Final = "tool-hub/credentials/1"
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")


def is_installed() -> bool:
    return find_spec("cryptography") is not None


class KeyUnfit(ValueError):
    """A key cannot be used; the message says why, and nothing of the key."""


class SealBroken(Exception):
    """Sealed bytes do not open: they were changed, moved, or sealed under a key that is not there (`key_id`)."""

    def __init__(self, key_id: str = "") -> None:
        super().__init__(f"the key `{key_id}` is not there" if key_id else "the sealed bytes do not belong here")
        self.key_id = key_id


def key_of(text: str) -> bytes:
    """32 bytes, written as 64 hex digits or in base64. Raises KeyUnfit."""
    word = text.strip()
    try:
        key = bytes.fromhex(word) if _HEX.fullmatch(word) else base64.b64decode(word, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        # An empty key falls through to the one message below, which says nothing of what was written.
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyUnfit("it is not 32 bytes in base64 or hex; `openssl rand -base64 32` makes one")
    return key


class SealingKeys:
    """Never shown."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """By their ids, the one that seals first. Raises KeyUnfit."""
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
        """Under the current key. Nonce, then ciphertext and tag."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        # 96 random bits: NIST SP 800-38D §8.3 allows 2^32 messages under one key, more than a hub will ever seal.
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._keys[self.current]).encrypt(nonce, plain, _associated(self.current, bound))

    def open(self, key_id: str, sealed: bytes, *bound: str) -> bytes:
        """Raises SealBroken."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._keys.get(key_id)
        if key is None:
            raise SealBroken(key_id)
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, rest, _associated(key_id, bound))
        # What is too short for a nonce and a tag raises ValueError; to the caller both are the same.
        except (InvalidTag, ValueError):
            raise SealBroken from None


def _associated(key_id: str, bound: tuple[str, ...]) -> bytes:
    # As JSON: no two lists of texts have the same bytes, whatever characters the texts have.
    return orjson.dumps([_CONTEXT, key_id, *bound])
