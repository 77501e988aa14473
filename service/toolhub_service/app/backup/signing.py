"""Proves who made a backup: the manifest's SHA-256 is signed with a key that no backup holds (Ed25519, RFC 8032).

A backup contains `audit.key`, which anyone who can write the backup has read: what is sealed with it proves nothing
about the backup. The key of backups stays in the data folder, and only its public half is needed where a backup is
restored.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from toolhub_service.app.backup.parts import BackupRefused
from toolhub_service.app.config_files.editing import SecretFileInvalid, read_key, read_or_make_key, replace_text
from toolhub_service.app.config_files.paths import Paths

SIGNATURE_MAX_BYTES: Final = 4_096
_PURPOSE: Final = b"tool-hub backup manifest 1\n"
_TRUST_MAX_BYTES: Final = 64 * 1024
_HEX: Final = re.compile(r"[0-9a-f]{64}")


class _Signature(msgspec.Struct, frozen=True):
    public_key: str
    """64 hex digits."""
    signature: str
    """128 hex digits."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose backups are accepted."""

    keys: frozenset[str]
    """Trusted public keys, 64 hex digits each."""
    named: str
    """Where the keys came from, for messages."""
    allows_unsigned: bool = False
    """Whether a backup signed by none of the keys is accepted, too: its manifest then proves nothing."""


def sign(paths: Paths, manifest: bytes) -> tuple[bytes, str]:
    """Return the content of `manifest.sig`, and the public key, which is written beside the hub's own.

    The key is made on first use. Raises BackupRefused, OSError.
    """
    try:
        key = Ed25519PrivateKey.from_private_bytes(read_or_make_key(paths.backup_key))
    except SecretFileInvalid as broken:
        raise BackupRefused(str(broken)) from broken
    public = _hex(key)
    line = f"{public} tool-hub backups of {os.uname().nodename}\n"
    if not paths.backup_public_key.exists() or public not in paths.backup_public_key.read_text("ascii", "replace"):
        replace_text(paths.backup_public_key, line, mode=0o644)
    signature = key.sign(_bytes_to_sign(manifest)).hex()
    return msgspec.json.encode(_Signature(public, signature)) + b"\n", public


def trust_of(paths: Paths, file: Path | None, *, allows_unsigned: bool) -> Trust:
    """Return the keys of `file`, one a line, or else the data folder's own. Raises BackupRefused."""
    if file is not None:
        return Trust(_public_keys(file), str(file), allows_unsigned)
    if not paths.backup_key.exists():
        return Trust(frozenset(), "", allows_unsigned)
    try:
        own = read_key(paths.backup_key, "name the public key with --trust")
    except (OSError, SecretFileInvalid) as unusable:
        raise BackupRefused(str(unusable)) from unusable
    return Trust(frozenset({_hex(Ed25519PrivateKey.from_private_bytes(own))}), str(paths.backup_key), allows_unsigned)


def signer_of(manifest: bytes, signature: bytes | None, trust: Trust) -> str:
    """Return the trusted public key that has signed; empty when none has and that is allowed. Raises BackupRefused."""
    if signature is None:
        if trust.allows_unsigned:
            return ""
        raise BackupRefused(
            "The backup is not signed, and whoever can write it would own the hub that is restored from it. Where it "
            "was made before backups were signed, and you know where it has been since, give --allow-unsigned."
        )
    public = _verify_signature(manifest, signature)
    if public in trust.keys:
        return public
    if trust.allows_unsigned:
        return ""
    if not trust.keys:
        raise BackupRefused(
            f"The backup is signed with the key {public}, and nothing here says whose that is. --trust names a file "
            "with the public key of the hub that made it, the backup.pub of its data folder, kept apart from backups."
        )
    raise BackupRefused(
        f"The backup is signed with the key {public}, which is none of those in {trust.named}. "
        "--trust names another file."
    )


def _verify_signature(manifest: bytes, signature: bytes) -> str:
    try:
        decoded = msgspec.json.decode(signature, type=_Signature)
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(decoded.public_key))
        key.verify(bytes.fromhex(decoded.signature), _bytes_to_sign(manifest))
    except (InvalidSignature, ValueError) as wrong:  # msgspec's errors are of the latter
        raise BackupRefused("The backup was changed after it was signed: take another one.") from wrong
    return decoded.public_key


def _bytes_to_sign(manifest: bytes) -> bytes:
    return _PURPOSE + hashlib.sha256(manifest).digest()


def _public_keys(file: Path) -> frozenset[str]:
    try:
        with file.open("rb") as opened:
            text = opened.read(_TRUST_MAX_BYTES).decode("ascii", "replace")
    except OSError as unreadable:
        raise BackupRefused(f"--trust {file}: {unreadable.strerror}.") from unreadable
    lines = [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines or not all(map(_HEX.fullmatch, lines)):
        raise BackupRefused(
            f"--trust {file} holds no public keys: each line is 64 hexadecimal digits and a comment, as in the "
            "backup.pub of a data folder."
        )
    if file.name.endswith(".key"):
        raise BackupRefused(f"--trust {file} is the key that signs. It is to stay there: name its backup.pub.")
    return frozenset(lines)


def _hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()
